#pragma once
#include <bit>
#include <cstdint>

namespace accdp {

/// IEEE 754 binary16 in integers: the conversions that processors have, to nearest, ties to even, NaNs made quiet.
class SoftFloat16 {
 public:
  SoftFloat16() = default;
  explicit SoftFloat16(float value) {
    constexpr std::uint32_t kInfinity = 0x7f800000, kTooLarge = 0x477ff000, kLeastNormal = 0x38800000;
    const auto wide = std::bit_cast<std::uint32_t>(value), rest = wide & 0x7fffffff;
    std::uint32_t bits = 0;
    if (rest > kInfinity) {
      bits = 0x7e00 | (rest >> 13 & 0x3ff);
    } else if (rest >= kTooLarge) {
      bits = 0x7c00;
    } else if (rest < kLeastNormal) {  // in the sum the last place is that of the denormal numbers, 2^-24
      bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(rest) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
    } else {
      bits = (rest + 0xfff + (rest >> 13 & 1) - kBiases) >> 13;
    }
    bits_ = static_cast<std::uint16_t>((wide >> 16 & 0x8000) | bits);
  }
  explicit operator float() const {
    const std::uint32_t sign = std::uint32_t{bits_} << 16 & 0x80000000, rest = bits_ & 0x7fff;
    std::uint32_t wide = (rest << 13) + kBiases;
    if (rest > 0x7c00)
      wide = 0x7fc00000 | rest << 13;
    else if (rest == 0x7c00)
      wide = 0x7f800000;
    else if (rest < 0x400)
      wide = std::bit_cast<std::uint32_t>(static_cast<float>(rest) * 0x1p-24F);
    return std::bit_cast<float>(sign | wide);
  }

 private:
  static constexpr std::uint32_t kBiases = (127 - 15) << 23;
  std::uint16_t bits_;
};

// The compiler's own where it has one in C++: GCC from version 12 on, on Arm from 13 on and under another name before.
#if defined(__clang__) ? __clang_major__ >= 15 : __GNUC__ >= 13 || (__GNUC__ == 12 && defined(__x86_64__))
using Float16 = _Float16;
#elif defined(__aarch64__)
using Float16 = __fp16;
#else
using Float16 = SoftFloat16;
#endif

}  // namespace accdp
