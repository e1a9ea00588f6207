#include "codec/spread.hpp"

#include <bit>
#include <cmath>
#include <cstring>

namespace accdp {
namespace {

float value_of_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const float mantissa = bits & 1023;
  const float size = exponent == 31 ? INFINITY
                     : exponent     ? std::ldexp(1024 + mantissa, exponent - 25)
                                    : std::ldexp(mantissa, -24);
  return bits & 0x8000 ? -size : size;
}

struct F16 {
  using Raw = std::uint16_t;
  static double value(Raw bits) { return value_of_half(bits); }
};
struct BF16 {
  using Raw = std::uint16_t;
  static double value(Raw bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};
struct F32 {
  using Raw = float;
  static double value(Raw x) { return x; }
};
struct F64 {
  using Raw = double;
  static double value(Raw x) { return x; }
};

/// Sums in lanes, so that the additions need not wait for each other; around the first finite value, so that a large
/// mean does not eat the digits.
template <class Type>
double deviation(ConstBytes data) {
  using Raw = typename Type::Raw;
  constexpr std::size_t kLanes = 8;
  const std::size_t count = data.size() / sizeof(Raw);
  auto at = [&](std::size_t i) {
    Raw raw;
    std::memcpy(&raw, data.data() + i * sizeof raw, sizeof raw);
    return Type::value(raw);
  };
  double origin = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (std::isfinite(origin = at(i))) break;
  if (!std::isfinite(origin)) return 0;
  double sums[kLanes] = {}, squares[kLanes] = {}, counts[kLanes] = {};
  auto add = [&](std::size_t lane, double x) {
    const double d = x - origin;
    const bool finite = std::abs(d) <= 1e300;
    sums[lane] += finite ? d : 0;
    squares[lane] += finite ? d * d : 0;
    counts[lane] += finite;
  };
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) add(lane, at(i + lane));
  for (; i < count; ++i) add(0, at(i));
  double sum = 0, square = 0, n = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    sum += sums[lane];
    square += squares[lane];
    n += counts[lane];
  }
  if (n < 2) return 0;
  const double variance = (square - sum * sum / n) / n;
  return variance > 0 && std::isfinite(variance) ? std::sqrt(variance) : 0;
}

}  // namespace

double standard_deviation(Datatype type, ConstBytes data) noexcept {
  switch (type) {
    case Datatype::kF16: return deviation<F16>(data);
    case Datatype::kBF16: return deviation<BF16>(data);
    case Datatype::kF32: return deviation<F32>(data);
    case Datatype::kF64: return deviation<F64>(data);
    default: return 0;
  }
}

}  // namespace accdp
