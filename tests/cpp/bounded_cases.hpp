#pragma once
// What every error-bounded codec of our own must do, over the values that are hardest: the bound holds for every finite
// element, all others are exact, both sets of loops give the same bytes, damaged streams do no harm.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.hpp"
#include "codec/block_ops.hpp"
#include "codec/codec.hpp"
#include "codec/quantiser.hpp"
#include "codec_data.hpp"

namespace accdp {

struct BoundedCodec {
  const CodecRow& row;
  std::size_t (*encode)(Datatype, double bound, ConstBytes in, Bytes out, const BlockOps&);
  void (*decode)(Datatype, ConstBytes in, Bytes out, const BlockOps&);
};

inline constexpr Datatype kBoundedTypes[] = {Datatype::kF32, Datatype::kBF16, Datatype::kF16};

inline double value_of(Datatype type, const Buffer& data, std::size_t i) {
  if (type == Datatype::kF32) {
    float value;
    std::memcpy(&value, data.data() + 4 * i, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, data.data() + 2 * i, 2);
  if (type == Datatype::kBF16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
  const int exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  return sign * (exponent ? std::ldexp(mantissa + 1024, exponent - 25) : std::ldexp(mantissa, -24));
}

inline void check_bound(Datatype type, double bound, const Buffer& data, const Buffer& back) {
  const std::size_t width = element_bytes(type);
  for (std::size_t i = 0; i < data.size() / width; ++i) {
    const double x = value_of(type, data, i), y = value_of(type, back, i);
    if (std::isfinite(x))
      CHECK(std::fabs(x - y) <= bound);
    else
      CHECK(std::memcmp(data.data() + i * width, back.data() + i * width, width) == 0);
  }
}

/// The stream, empty where it would not be smaller. Checks the bound, and both loops, at odd addresses.
inline Buffer checked(const BoundedCodec& codec, Datatype type, double bound, const Buffer& data) {
  Buffer moved(data.size() + 1), plain(data.size()), back(data.size());
  Buffer stream(data.size() + 1, std::byte{0xa5});  // what is there before makes no difference
  std::copy(data.begin(), data.end(), moved.begin() + 1);
  const std::size_t bytes =
      codec.encode(type, bound, ConstBytes(moved).subspan(1), Bytes(stream).subspan(1), block_ops());
  CHECK(codec.encode(type, bound, data, plain, portable_block_ops()) == bytes);
  CHECK(bytes == 0 || bytes < data.size());
  plain.resize(bytes);
  plain.shrink_to_fit();
  CHECK(std::equal(plain.begin(), plain.end(), stream.begin() + 1));
  if (bytes == 0) return plain;
  codec.decode(type, plain, back, portable_block_ops());
  check_bound(type, bound, data, back);
  Buffer rounded = data;
  codec.row.round({type, bound}, rounded);
  CHECK(rounded == back);
  Buffer apart(data.size() + 2, std::byte{0xa5});
  codec.decode(type, ConstBytes(stream).subspan(1, bytes), Bytes(apart).subspan(1, data.size()), block_ops());
  CHECK(std::equal(back.begin(), back.end(), apart.begin() + 1));
  CHECK(apart.front() == std::byte{0xa5} && apart.back() == std::byte{0xa5});
  return plain;
}

inline void sizes(const BoundedCodec& codec) {
  for (Datatype type : kBoundedTypes)
    for (Kind kind : kKinds)
      for (std::size_t blocks = 0; blocks <= 3; ++blocks)
        for (std::size_t count : {256 * blocks - 1, 256 * blocks, 256 * blocks + 1, 256 * blocks + 100})
          if (count < 4096)
            for (double bound : {1e-1, 1e-3, 1e-6}) checked(codec, type, bound, make(kind, type, count, 5 + count));
}

/// Every number of the 16-bit types with bounds of every kind: powers of two, their neighbours, and others. Blocks of
/// neighbours in value, each a chunk of its own, and all in one chunk.
inline void all_patterns(const BoundedCodec& codec) {
  Random random{2};
  for (Datatype type : {Datatype::kBF16, Datatype::kF16})
    for (int round = 0; round < 240; ++round) {
      const int scale =
          type == Datatype::kF16 ? static_cast<int>(random.below(36)) - 24 : static_cast<int>(random.below(140)) - 60;
      double bound = std::ldexp(1 + random.below(1000) / 1000.0, scale);
      if (round % 3 == 0) bound = std::ldexp(1.0, scale);
      if (round % 3 == 1) bound = std::ldexp(1 + random.below(16) / 16.0, scale) * (1 + (random.below(3) - 1.0) * 1e-7);
      Buffer all(2 * 65536);
      for (std::uint32_t i = 0; i < 65536; ++i) {
        const auto bits = static_cast<std::uint16_t>(i >> 1 | i << 15);  // both signs side by side
        std::memcpy(all.data() + 2 * i, &bits, 2);
      }
      checked(codec, type, bound, all);
      for (std::size_t at = 0; at < all.size(); at += 1024)
        checked(codec, type, bound,
                Buffer(all.begin() + static_cast<long>(at), all.begin() + static_cast<long>(at) + 1024));
    }
}

/// float32 near half steps, where rounding errors decide, up to the largest numbers that are coded.
inline void half_steps(const BoundedCodec& codec) {
  Random random{4};
  for (int round = 0; round < 3000; ++round) {
    const double bound =
        std::ldexp(1 + random.below(1u << 30) / 1073741824.0, static_cast<int>(random.below(180)) - 90);
    const double step = Quantiser::step_for(Datatype::kF32, bound, 0);
    const std::uint32_t most = 1u << (1 + random.below(15));
    Buffer data(4 * 512);
    for (std::size_t i = 0; i < 512; ++i) {
      const double number = random.below(most) + 0.5 * random.below(3);
      auto x = static_cast<float>(number * step);
      const std::uint32_t off = random.below(5);
      if (off == 1) x = std::nextafter(x, 0.0f);
      if (off == 2) x = std::nextafter(x, HUGE_VALF);
      put(data, Datatype::kF32, i, random.below(2) ? x : -x);
    }
    checked(codec, Datatype::kF32, bound, data);
  }
  for (double bound : {1e-300, 1e-45, 1e-31, 1e-30, 1e-20, 1e20, 3e38, 1e300, 1.7e308})
    for (Datatype type : kBoundedTypes)
      for (Kind kind : kKinds) checked(codec, type, bound, make(kind, type, 2000));
}

inline void special_values(const BoundedCodec& codec) {
  const std::uint32_t specials[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f812345, 0xffedcba9, 0x00000001,
                                    0x80000000, 0x807fffff, 0x7f7fffff, 0x00800000, 0xff7fffff};
  for (Datatype type : kBoundedTypes)
    for (std::uint32_t special : specials)
      for (std::size_t place : {0u, 31u, 255u, 256u, 300u, 511u, 512u}) {
        Buffer data = make(Kind::kBell, type, 600);
        std::uint32_t bits = type == Datatype::kF32 ? special : special >> 16;
        if (type == Datatype::kF16) bits = (bits & 0x8000) | (special >> 13 & 0x7fff);
        std::memcpy(data.data() + place * element_bytes(type), &bits, element_bytes(type));
        for (double bound : {1e-2, 1e-3}) checked(codec, type, bound, data);
      }
  // small numbers and -0 become +0, and cost nothing
  Buffer small(4 * 4096);
  for (std::size_t i = 0; i < 4096; ++i) put(small, Datatype::kF32, i, i % 3 ? -0.0f : 1e-9f);
  CHECK(checked(codec, Datatype::kF32, 1e-6, small).size() <= 40);
}

/// Bytes before over bytes after, of a bell with a bound in standard deviations.
inline double bell_ratio(const BoundedCodec& codec, Datatype type, double bound) {
  const Buffer data = make(Kind::kBell, type, 65536);
  const std::size_t bytes = checked(codec, type, bound / 32, data).size();
  return bytes ? static_cast<double>(data.size()) / static_cast<double>(bytes) : 1;
}

/// least_refused: of 36000 damaged streams; a codec that knows no redundancy takes the others for other values.
inline void damage(const BoundedCodec& codec, int least_refused) {
  Random random{13};
  int refused = 0;
  for (Datatype type : kBoundedTypes)
    for (Kind kind : {Kind::kBell, Kind::kSparse, Kind::kWide}) {
      const Buffer stream = checked(codec, type, 0.004, make(kind, type, 900));
      if (stream.empty()) continue;
      for (int round = 0; round < 4000; ++round) {
        const Buffer bad = damaged(stream, random);
        Buffer out(900 * element_bytes(type)), again(out.size());
        bool is_refused = false;
        try {
          codec.decode(type, bad, out, block_ops());
        } catch (const CodecError&) {
          is_refused = true;
        }
        refused += is_refused;
        if (is_refused)
          CHECK_THROWS(codec.decode(type, bad, again, portable_block_ops()), CodecError, "");
        else
          codec.decode(type, bad, again, portable_block_ops());
        if (!is_refused) CHECK(out == again);
      }
      for (double step : {0.0, -1.0, HUGE_VAL, std::nan(""), 0.1, 1e-310, 1e300, 0x1p-101, 0x1p113}) {
        Buffer bad = stream, out(900 * element_bytes(type));
        std::memcpy(bad.data(), &step, 8);
        CHECK_THROWS(codec.decode(type, bad, out, block_ops()), CodecError, "step");
      }
    }
  CHECK(refused > least_refused);
  Buffer data(4096), out(4096);
  for (double bound : {0.0, -1.0, HUGE_VAL, std::nan("")})
    CHECK_THROWS(codec.encode(Datatype::kF32, bound, data, out, block_ops()), UsageError, "bound");
}

}  // namespace accdp
