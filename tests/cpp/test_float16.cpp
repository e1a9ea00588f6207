// Floats of 16 bits in integers, for compilers that have none: all numbers and where they round, against arithmetic in
// double, and against the compiler's own where it has one.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/float16.hpp"
#include "check.hpp"

using namespace accdp;

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
float widened(std::uint16_t bits) { return static_cast<float>(std::bit_cast<SoftFloat16>(bits)); }
std::uint16_t rounded(float value) { return std::bit_cast<std::uint16_t>(SoftFloat16(value)); }

/// Of a magnitude, as if the format went on above its infinity.
double size_of(int bits) {
  const int exponent = bits >> 10, mantissa = bits & 0x3ff;
  return exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
}

void check_conversions(std::uint16_t magnitude) {
  constexpr std::uint16_t kInfinity = 0x7c00, kSign = 0x8000;
  const std::uint16_t negative = magnitude | kSign;
  if (magnitude > kInfinity) {
    CHECK(std::isnan(widened(magnitude)) && std::isnan(widened(negative)));
    CHECK(rounded(widened(magnitude)) == (magnitude | 0x200));
    return;
  }
  const double size = magnitude < kInfinity ? size_of(magnitude) : std::numeric_limits<double>::infinity();
  CHECK(bits_of(widened(magnitude)) == bits_of(static_cast<float>(size)));
  CHECK(bits_of(widened(negative)) == bits_of(static_cast<float>(-size)));
  CHECK(rounded(widened(magnitude)) == magnitude);
  CHECK(rounded(widened(negative)) == negative);
  if (magnitude == kInfinity) return;
  // Half way to the next number, which float32 has, and directly beside that.
  const auto half = static_cast<float>((size + size_of(magnitude + 1)) / 2);
  const int even = magnitude + (magnitude & 1);
  CHECK(rounded(half) == even);
  CHECK(rounded(std::nextafter(half, 0.0F)) == magnitude);
  CHECK(rounded(std::nextafter(half, 1e30F)) == magnitude + 1);
  CHECK(rounded(-half) == (even | kSign));
}

int main() {
  for (std::uint32_t magnitude = 0; magnitude < 0x8000; ++magnitude) check_conversions(magnitude);
  CHECK(rounded(1e30F) == 0x7c00);
  CHECK(rounded(std::numeric_limits<float>::denorm_min()) == 0);
  CHECK(rounded(-std::numeric_limits<float>::denorm_min()) == 0x8000);
  for (std::uint32_t i = 0; i < 1 << 20; ++i) {  // of all floats, NaNs among them
    const auto value = std::bit_cast<float>(i * 4099U);
    CHECK(rounded(value) == std::bit_cast<std::uint16_t>(static_cast<Float16>(value)));
  }
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    CHECK(bits_of(widened(half)) == bits_of(static_cast<float>(std::bit_cast<Float16>(half))));
  }
}
