#pragma once
// Segments of a block of fpk: what codec/fpk_floats.cpp and fpk_integers.cpp do to whole blocks.
#include <cstddef>
#include <cstdint>

#include "codec/cuda_bits.hpp"
#include "codec/fpk_code.hpp"

namespace accdp::device_codec {

constexpr std::uint32_t kPlaneWords = kRow / kSegment;  // of a block of fpk

/// The escapes of a segment, whose bits are set in all planes, how many come before it in the block, and how many the
/// block has.
struct SegmentEscapes {
  std::uint32_t here = 0, before = 0, all = 0;

  __device__ SegmentEscapes(const std::uint32_t* planes, int count, std::uint32_t s) {
    for (std::uint32_t k = 0; k < kPlaneWords; ++k) {
      std::uint32_t word = ~0u;
      for (int b = 0; b < count && word; ++b) word &= planes[b * kPlaneWords + k];
      const std::uint32_t ones = ones_in(word);
      if (k < s) before += ones;
      if (k == s) here = word;
      all += ones;
    }
  }
};

/// Bytes behind the last escape are zero up to a whole word.
__device__ inline void put_padding(std::uint8_t* list, std::uint32_t bytes) {
  for (std::uint32_t at = bytes; at % 4; ++at) list[at] = 0;
}

// How the elements of a float type are taken apart into exponent and rest, the sign above the mantissa: rows of bytes,
// then planes of bits.
template <class Integer, int kExponentBits, int kMantissaBits>
struct FloatParts {
  using T = Integer;
  static constexpr std::uint32_t kLargest = (1u << kExponentBits) - 1, kSign = 1u << kMantissaBits;
  static __device__ std::uint32_t exponent(T x) { return x >> kMantissaBits & kLargest; }
  static __device__ std::uint32_t rest(T x) { return (x & (kSign - 1)) | (x >> kExponentBits & kSign); }
  static __device__ T join(std::uint32_t exponent, std::uint32_t rest) {
    return static_cast<T>((rest & (kSign - 1)) | (rest & kSign) << kExponentBits |
                          (exponent & kLargest) << kMantissaBits);
  }
};
struct PartsF32 : FloatParts<std::uint32_t, 8, 23> {
  static __device__ FpkLayout layout() { return kFpkF32; }
};
struct PartsBF16 : FloatParts<std::uint16_t, 8, 7> {
  static __device__ FpkLayout layout() { return kFpkBF16; }
};
struct PartsF16 : FloatParts<std::uint16_t, 5, 10> {
  static __device__ FpkLayout layout() { return kFpkF16; }
};

template <class Parts>
struct FpkFloats {
  using T = typename Parts::T;
  using Parameters = NoParameters;
  static constexpr std::uint32_t kBlock = kRow, kCounts = 16, kHead = 0;

  __device__ FpkFloats(const Parameters&, const Scratch&, std::uint32_t) {}
  __device__ bool put_head(std::byte*) const { return true; }

  /// The largest exponent above the bits of the rest that occur.
  __device__ std::uint32_t summary(const T (&x)[kSegment]) const {
    std::uint32_t rest = 0, largest = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kSegment; ++i) {
      rest |= Parts::rest(x[i]);
      const std::uint32_t exponent = Parts::exponent(x[i]);
      largest = exponent > largest ? exponent : largest;
    }
    return largest << 24 | rest;
  }
  static __device__ std::uint32_t merge(std::uint32_t a, std::uint32_t b) {
    const std::uint32_t largest = (a >> 24) > (b >> 24) ? a >> 24 : b >> 24;
    return largest << 24 | ((a | b) & 0xffffff);
  }

  // counts[0]: exponents 0; counts[j]: at least j below the largest, for the j of CodeCounts.
  static __device__ void count(const T (&x)[kSegment], std::uint32_t merged, std::uint8_t* counts) {
    const std::uint32_t largest = merged >> 24;
    for (std::uint32_t j = 0; j < kCounts; ++j) {
      std::uint32_t many = 0;
#pragma unroll
      for (std::uint32_t i = 0; i < kSegment; ++i) {
        const std::uint32_t exponent = Parts::exponent(x[i]);
        many += j == 0 ? exponent == 0 : largest - exponent >= j;
      }
      counts[j] = static_cast<std::uint8_t>(many);
    }
  }
  static __device__ BlockPlan plan(std::uint32_t merged, const std::uint16_t* sums) {
    if (merged == 0) return {};
    const FpkLayout layout = Parts::layout();
    CodeCounts counts;
    counts.at_least[0] = kRow;
    for (int j = 1; j < 16; ++j) counts.at_least[j] = sums[j];
    counts.zeros = sums[0];
    const auto largest = static_cast<std::uint8_t>(merged >> 24);
    const FpkCode code = choose_fpk_code(counts, largest, layout.exponent_bits);
    std::uint32_t present = 0;
    for (int r = 0; r < layout.rest_rows; ++r)
      if (merged >> 8 * r & 0xff) present |= 1u << r;
    for (int p = 0; p < layout.rest_planes; ++p)
      if (merged >> (8 * layout.rest_rows + p) & 1) present |= 1u << (layout.rest_rows + p);
    std::uint32_t bytes = 4 + static_cast<std::uint32_t>(code.planes * kRow / 8 + layout.rest_bytes(present)) +
                          padded_to_words(static_cast<std::uint32_t>(code.escapes));
    if (bytes >= kRow * sizeof(T)) bytes = kRow * sizeof(T);
    return {static_cast<std::uint16_t>(bytes), static_cast<std::uint8_t>(present),
            static_cast<std::uint8_t>(code.planes | (code.has_zero ? kFpkZeroCode : 0)), code.base,
            static_cast<std::uint8_t>(largest - code.base)};
  }

  static __device__ FpkCode code_of(const BlockPlan& plan) {
    return {plan.planes & ~kFpkZeroCode, plan.base, (plan.planes & kFpkZeroCode) != 0, 0};
  }
  /// Escapes of a segment, from its counts.
  static __device__ std::uint32_t escapes_of(const std::uint8_t* counts, const FpkCode& code, std::uint32_t below) {
    const std::uint32_t first = below + (1u << code.planes) - 1 - code.has_zero;
    const std::uint32_t above = below ? kSegment - counts[below] : 0;
    const std::uint32_t beyond = first ? counts[first] : kSegment;
    return above + beyond - (code.has_zero ? counts[0] : 0);
  }

  __device__ void write(const T (&x)[kSegment], std::uint32_t s, const BlockPlan& plan, const std::uint8_t* counts,
                        std::uint32_t* out) const {
    const FpkLayout layout = Parts::layout();
    const FpkCode code = code_of(plan);
    const CodeRange range = code.range();
    if (s == 0) out[0] = plan.rest | std::uint32_t{plan.planes} << 8 | std::uint32_t{plan.base} << 16;
    std::uint8_t codes[kSegment];
    std::uint32_t escaped = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kSegment; ++i) {
      const std::uint32_t exponent = Parts::exponent(x[i]);
      const auto distance = static_cast<std::uint8_t>(range.base - exponent);
      const bool is_zero = range.has_zero && exponent == 0;
      const bool is_escape = !is_zero && distance >= range.first_unused;
      codes[i] = code.is_plain() ? static_cast<std::uint8_t>(exponent)
                 : is_zero       ? range.first_unused
                 : is_escape     ? range.escape
                                 : distance;
      escaped |= std::uint32_t{is_escape} << i;
    }
    std::uint32_t* to = out + 1;
    for (int b = 0; b < code.planes; ++b, to += kPlaneWords) to[s] = plane_word(codes, b);
    for (int r = 0; r < layout.rest_rows; ++r) {
      if (!(plan.rest >> r & 1)) continue;
#pragma unroll
      for (std::uint32_t w = 0; w < kSegment / 4; ++w) {
        std::uint32_t word = 0;
#pragma unroll
        for (std::uint32_t l = 0; l < 4; ++l) word |= (Parts::rest(x[4 * w + l]) >> 8 * r & 0xff) << 8 * l;
        to[s * (kSegment / 4) + w] = word;
      }
      to += kRow / 4;
    }
    for (int p = 0; p < layout.rest_planes; ++p) {
      if (!(plan.rest >> (layout.rest_rows + p) & 1)) continue;
      std::uint32_t word = 0;
#pragma unroll
      for (std::uint32_t i = 0; i < kSegment; ++i) word |= (Parts::rest(x[i]) >> (8 * layout.rest_rows + p) & 1) << i;
      to[s] = word;
      to += kPlaneWords;
    }
    if (code.is_plain() || code.planes == 0) return;
    auto* list = reinterpret_cast<std::uint8_t*>(to);
    std::uint32_t at = 0;
    for (std::uint32_t k = 0; k < s; ++k) at += escapes_of(counts + k * kCounts, code, plan.below);
#pragma unroll
    for (std::uint32_t i = 0; i < kSegment; ++i)
      if (escaped >> i & 1) list[at++] = static_cast<std::uint8_t>(Parts::exponent(x[i]));
    if (s == kPlaneWords - 1) put_padding(list, at);
  }

  static __device__ bool read(const std::uint32_t* in, std::uint32_t bytes, std::uint32_t s, double, T (&x)[kSegment]) {
    const FpkLayout layout = Parts::layout();
    const std::uint32_t present = in[0] & 0xff;
    const BlockPlan plan = {0, 0, static_cast<std::uint8_t>(in[0] >> 8), static_cast<std::uint8_t>(in[0] >> 16), 0};
    const FpkCode code = code_of(plan);
    if ((code.is_plain() && code.planes != layout.exponent_bits) ||
        present >> (layout.rest_rows + layout.rest_planes) ||
        (code.has_zero && (code.is_plain() || code.planes == 0)) || in[0] >> 24)
      return false;
    const auto before = 4 + static_cast<std::uint32_t>(code.planes * kRow / 8 + layout.rest_bytes(present));
    if (before > bytes) return false;
    const std::uint32_t* from = in + 1;
    const bool has_escapes = code.planes > 0 && !code.is_plain();
    const SegmentEscapes escapes(from, has_escapes ? code.planes : 0, s);
    if ((has_escapes ? padded_to_words(escapes.all) : 0) != bytes - before) return false;

    std::uint32_t exponents[kSegment] = {}, rests[kSegment] = {};
    for (int b = 0; b < code.planes; ++b, from += kPlaneWords) add_plane(from[s], b, exponents);
    const CodeRange range = code.range();
    if (!code.is_plain()) {
#pragma unroll
      for (std::uint32_t i = 0; i < kSegment; ++i)
        exponents[i] = range.has_zero && exponents[i] == range.first_unused ? 0 : (range.base - exponents[i]) & 0xff;
    }
    if (has_escapes) {
      const std::uint8_t* list = reinterpret_cast<const std::uint8_t*>(in) + before + escapes.before;
#pragma unroll
      for (std::uint32_t i = 0; i < kSegment; ++i)
        if (escapes.here >> i & 1) exponents[i] = *list++;
    }
    for (int r = 0; r < layout.rest_rows; ++r) {
      if (!(present >> r & 1)) continue;
#pragma unroll
      for (std::uint32_t w = 0; w < kSegment / 4; ++w)
#pragma unroll
        for (std::uint32_t l = 0; l < 4; ++l)
          rests[4 * w + l] |= (from[s * (kSegment / 4) + w] >> 8 * l & 0xff) << 8 * r;
      from += kRow / 4;
    }
    for (int p = 0; p < layout.rest_planes; ++p) {
      if (!(present >> (layout.rest_rows + p) & 1)) continue;
      add_plane(from[s], 8 * layout.rest_rows + p, rests);
      from += kPlaneWords;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kSegment; ++i) x[i] = Parts::join(exponents[i], rests[i]);
    return true;
  }
};

template <class Integer>
struct FpkIntegers {
  using T = Integer;
  using Parameters = NoParameters;
  static constexpr std::uint32_t kBits = 8 * sizeof(T), kBlock = kRow, kCounts = kBits, kHead = 0;
  static constexpr std::uint32_t kHasEscapes = 1;

  __device__ FpkIntegers(const Parameters&, const Scratch&, std::uint32_t) {}
  __device__ bool put_head(std::byte*) const { return true; }

  __device__ std::uint32_t summary(const T (&x)[kSegment]) const {
    std::uint32_t bits = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kSegment; ++i) bits |= x[i];
    return bits;
  }
  static __device__ std::uint32_t merge(std::uint32_t a, std::uint32_t b) { return a | b; }

  /// counts[p]: values that p planes have no code for.
  static __device__ void count(const T (&x)[kSegment], std::uint32_t merged, std::uint8_t* counts) {
    const std::uint32_t most = bit_width(merged);
    for (std::uint32_t p = 0; p < kCounts; ++p) {
      std::uint32_t many = 0;
      if (p < most) {
        const std::uint32_t escape = (1u << p) - 1;
#pragma unroll
        for (std::uint32_t i = 0; i < kSegment; ++i) many += x[i] >= escape;
      }
      counts[p] = static_cast<std::uint8_t>(many);
    }
  }
  /// The cheapest number of planes; of equally cheap ones the largest.
  static __device__ BlockPlan plan(std::uint32_t merged, const std::uint16_t* sums) {
    if (merged == 0) return {};
    const std::uint32_t most = bit_width(merged);
    std::uint32_t best = most, lowest = most * kRow / 8, escaped = 0;
    for (std::uint32_t planes = most - 1; planes > 0; --planes) {
      const std::uint32_t bytes = sums[planes] * static_cast<std::uint32_t>(sizeof(T));
      const std::uint32_t cost = planes * kRow / 8 + bytes;
      if (cost < lowest) lowest = cost, best = planes, escaped = bytes;
      if (bytes >= lowest) break;
    }
    std::uint32_t bytes = 4 + best * kRow / 8 + padded_to_words(escaped);
    if (bytes >= kRow * sizeof(T)) bytes = kRow * sizeof(T);
    return {static_cast<std::uint16_t>(bytes), static_cast<std::uint8_t>(escaped ? kHasEscapes : 0),
            static_cast<std::uint8_t>(best), 0, 0};
  }

  __device__ void write(const T (&x)[kSegment], std::uint32_t s, const BlockPlan& plan, const std::uint8_t* counts,
                        std::uint32_t* out) const {
    if (s == 0) out[0] = plan.rest | std::uint32_t{plan.planes} << 8;
    const auto escape = static_cast<T>(plan.planes == kBits ? ~T{0} : (T{1} << plan.planes) - 1);
    T codes[kSegment];
#pragma unroll
    for (std::uint32_t i = 0; i < kSegment; ++i) codes[i] = x[i] < escape ? x[i] : escape;
    for (int b = 0; b < plan.planes; ++b) out[1 + b * kPlaneWords + s] = plane_word(codes, b);
    if (plan.rest == 0) return;
    auto* list = reinterpret_cast<T*>(out + 1 + plan.planes * kPlaneWords);
    std::uint32_t at = 0;
    for (std::uint32_t k = 0; k < s; ++k) at += counts[k * kCounts + plan.planes];
#pragma unroll
    for (std::uint32_t i = 0; i < kSegment; ++i)
      if (x[i] >= escape) list[at++] = x[i];
    if (s == kPlaneWords - 1)
      put_padding(reinterpret_cast<std::uint8_t*>(list), at * static_cast<std::uint32_t>(sizeof(T)));
  }

  static __device__ bool read(const std::uint32_t* in, std::uint32_t bytes, std::uint32_t s, double, T (&x)[kSegment]) {
    const std::uint32_t rest = in[0] & 0xff, planes = in[0] >> 8 & 0xff;
    if (rest > kHasEscapes || in[0] >> 16 || planes == 0 || planes > kBits) return false;
    const std::uint32_t before = 4 + planes * static_cast<std::uint32_t>(kRow) / 8;
    if (before > bytes) return false;
    const std::uint32_t* from = in + 1;
    const SegmentEscapes escapes(from, static_cast<int>(planes), s);
    const std::uint32_t listed = rest ? escapes.all * static_cast<std::uint32_t>(sizeof(T)) : 0;
    if (padded_to_words(listed) != bytes - before) return false;
    for (std::uint32_t b = 0; b < planes; ++b) add_plane(from[b * kPlaneWords + s], static_cast<int>(b), x);
    if (rest == 0) return true;
    const T* list = reinterpret_cast<const T*>(from + planes * kPlaneWords) + escapes.before;
#pragma unroll
    for (std::uint32_t i = 0; i < kSegment; ++i)
      if (escapes.here >> i & 1) x[i] = *list++;
    return true;
  }
};

}  // namespace accdp::device_codec
