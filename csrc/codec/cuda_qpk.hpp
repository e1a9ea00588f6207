#pragma once
// Segments of a block of qpk: what codec/qpk.cpp and codec/quantiser.cpp do to whole blocks.
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/cuda_bits.hpp"

namespace accdp::device_codec {

// How floats become numbers and back, as in codec/block_ops.cpp.
struct NumberF32 {
  using T = std::uint32_t;
  static __device__ float load(T bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  static __device__ T store(float value) {
    T bits;
    std::memcpy(&bits, &value, 4);
    return bits;
  }
  static __device__ std::uint32_t exponent(T) { return 0; }  // the step is the same for all
};
struct NumberBF16 {
  using T = std::uint16_t;
  static __device__ float load(T bits) { return NumberF32::load(std::uint32_t{bits} << 16); }
  static __device__ T store(float value) {  // to nearest, ties to even; never a NaN here
    const std::uint32_t wide = NumberF32::store(value);
    return static_cast<T>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
  static __device__ std::uint32_t exponent(T bits) { return bits >> 7 & 0xff; }
};
struct NumberF16 {
  using T = std::uint16_t;
  static __device__ float load(T bits) {
    __half value;
    std::memcpy(&value, &bits, 2);
    return __half2float(value);
  }
  static __device__ T store(float value) {
    const __half rounded = __float2half_rn(value);
    T bits;
    std::memcpy(&bits, &rounded, 2);
    return bits;
  }
  static __device__ std::uint32_t exponent(T bits) { return bits >> 10 & 31; }
};

/// Steps by the exponent of a chunk's largest element: what Quantiser makes of the bound. 0: none keeps it.
struct Steps {
  float step[256], limit[256];
};

template <class Number>
struct Qpk {
  using T = typename Number::T;
  using Parameters = Steps;
  static constexpr std::uint32_t kBlock = 256, kCounts = 0, kHead = sizeof(double);
  static constexpr std::uint32_t kWords = kBlock / kSegment;  // of a plane
  static constexpr std::uint32_t kStays = 1u << 31;           // in a summary: an element has no number

  __device__ Qpk(const Steps& steps, const Scratch& scratch, std::uint32_t c)
      : step(steps.step[scratch.largest[c]]), limit(steps.limit[scratch.largest[c]]) {}
  float step, limit;

  __device__ bool put_head(std::byte* at) const {
    *reinterpret_cast<double*>(at) = step;
    return step != 0;
  }
  /// Sets kStays where the element has no number.
  __device__ std::uint32_t zigzag(T x, float inverse) const {
    constexpr float kNoFraction = 0x1.8p23f;
    const float scaled = Number::load(x) * inverse;
    const bool is_in = (scaled < 0 ? -scaled : scaled) <= limit;  // never for NaN
    const auto bits = static_cast<std::int32_t>(NumberF32::store((is_in ? scaled : 0) + kNoFraction));
    const std::int32_t number = bits - static_cast<std::int32_t>(NumberF32::store(kNoFraction));
    return (static_cast<std::uint32_t>(number) << 1 ^ static_cast<std::uint32_t>(number >> 31)) | (is_in ? 0 : kStays);
  }
  __device__ std::uint32_t summary(const T (&x)[kSegment]) const {
    if (step == 0) return kStays;
    const float inverse = 1 / step;
    std::uint32_t bits = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kSegment; ++i) bits |= zigzag(x[i], inverse);
    return bits;
  }
  static __device__ std::uint32_t merge(std::uint32_t a, std::uint32_t b) { return a | b; }
  static __device__ BlockPlan plan(std::uint32_t merged, const std::uint16_t*) {
    const std::uint32_t planes = bit_width(merged);  // beyond 16 where kStays is set
    const bool fits = planes <= 16 && planes < 8 * sizeof(T);
    const std::uint32_t bytes = fits ? planes * kBlock / 8 : kBlock * static_cast<std::uint32_t>(sizeof(T));
    return {static_cast<std::uint16_t>(bytes), 0, static_cast<std::uint8_t>(planes), 0, 0};
  }
  __device__ void write(const T (&x)[kSegment], std::uint32_t s, const BlockPlan& plan, const std::uint8_t*,
                        std::uint32_t* out) const {
    const float inverse = 1 / step;
    std::uint32_t numbers[kSegment];
#pragma unroll
    for (std::uint32_t i = 0; i < kSegment; ++i) numbers[i] = zigzag(x[i], inverse);
    for (int b = 0; b < plan.planes; ++b) out[b * kWords + s] = plane_word(numbers, b);
  }
  static __device__ bool read(const std::uint32_t* in, std::uint32_t bytes, std::uint32_t s, double step,
                              T (&x)[kSegment]) {
    const std::uint32_t planes = bytes / (kBlock / 8);
    if (bytes % (kBlock / 8) || planes > 16) return false;
    std::uint32_t numbers[kSegment] = {};
    for (std::uint32_t b = 0; b < planes; ++b) add_plane(in[b * kWords + s], static_cast<int>(b), numbers);
#pragma unroll
    for (std::uint32_t i = 0; i < kSegment; ++i) {
      const auto number = static_cast<std::int32_t>(numbers[i] >> 1) ^ -static_cast<std::int32_t>(numbers[i] & 1);
      x[i] = Number::store(static_cast<float>(number) * static_cast<float>(step));
    }
    return true;
  }
};

}  // namespace accdp::device_codec
