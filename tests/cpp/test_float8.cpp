// Reductions of 8-bit floats: sums and products of all pairs of numbers against arithmetic in double, by the loops for
// every processor and by those chosen for this one.
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "base/float16.hpp"
#include "check.hpp"
#include "device/reduce.hpp"

#define ACCDP_ISA portable
#include "device/reduce_kernels.hpp"

using namespace accdp;

struct Format {
  Datatype type;
  int mantissa_bits, bias;
  std::uint8_t largest;  // finite number; all above are not
  bool has_infinity;     // right above it

  /// Of a magnitude, as if the format went on above the largest.
  double size_of(int bits) const {
    const int exponent = bits >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  double decode(std::uint8_t bits) const {
    const int magnitude = bits & 0x7f;
    double size = size_of(magnitude);
    if (magnitude > largest) size = std::numeric_limits<double>::quiet_NaN();
    if (has_infinity && magnitude == largest + 1) size = std::numeric_limits<double>::infinity();
    return bits & 0x80 ? -size : size;
  }
  /// To nearest, ties to even; what rounds to more than the largest is infinity, or NaN where there is none.
  std::uint8_t encode(double value) const {
    const int sign = std::signbit(value) ? 0x80 : 0;
    value = std::abs(value);
    int low = 0;
    while (low <= largest && size_of(low + 1) <= value) ++low;
    if (low <= largest) {
      const double down = value - size_of(low), up = size_of(low + 1) - value;
      if (up < down || (up == down && low % 2 == 1)) ++low;
    }
    return static_cast<std::uint8_t>(sign | (low <= largest ? low : largest + 1));
  }
};
constexpr Format kE4M3{Datatype::kF8E4M3, 3, 7, 0x7e, false}, kE5M2{Datatype::kF8E5M2, 2, 15, 0x7b, true};

using Octets = std::vector<std::uint8_t>;

Octets reduced(Datatype type, ReduceOp op, const std::vector<Octets>& sources, int divisor = 0) {
  std::vector<const void*> places;
  for (const Octets& source : sources) places.push_back(source.data());
  Octets chosen(sources[0].size()), portable(chosen.size());
  reduce(chosen.data(), places, chosen.size(), {type, op, divisor});
  portable::kernel(type, op)(portable.data(), places, portable.size(), divisor);
  CHECK(chosen == portable);
  return chosen;
}

void check_pairs(const Format& format) {
  Octets a, b;
  for (int x = 0; x < 256; ++x)
    for (int y = 0; y < 256; ++y) {
      a.push_back(static_cast<std::uint8_t>(x));
      b.push_back(static_cast<std::uint8_t>(y));
    }
  auto is = [&](std::uint8_t got, double wanted) {
    return std::isnan(wanted) ? std::isnan(format.decode(got)) : got == format.encode(wanted);
  };
  const Octets same = reduced(format.type, ReduceOp::kSum, {a}), sums = reduced(format.type, ReduceOp::kSum, {a, b});
  const Octets products = reduced(format.type, ReduceOp::kProd, {a, b});
  const Octets halves = reduced(format.type, ReduceOp::kAvg, {a, b}, 2);
  const Octets least = reduced(format.type, ReduceOp::kMin, {a, b});
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = format.decode(a[i]), y = format.decode(b[i]);
    CHECK(is(same[i], x) && is(sums[i], x + y) && is(products[i], x * y) && is(halves[i], (x + y) / 2));
    if (std::isnan(x) || std::isnan(y))
      CHECK(std::isnan(format.decode(least[i])));
    else if (x != y)
      CHECK(least[i] == (x < y ? a[i] : b[i]));
  }
}

/// One rounding: 256 + 8 + 8 + 8 is nearest to 288, but 256 + 8 alone to 256.
void check_one_rounding() {
  const Octets large{kE4M3.encode(256)}, small{kE4M3.encode(8)};
  CHECK(reduced(Datatype::kF8E4M3, ReduceOp::kSum, {large, small, small, small}) == Octets{kE4M3.encode(288)});
}

/// Around every number and every middle of two, in float32.
void check_narrow(const Format& format) {
  for (int bits = 0; bits <= format.largest; ++bits)
    for (double wanted : {format.size_of(bits), (format.size_of(bits) + format.size_of(bits + 1)) / 2}) {
      const auto exact = static_cast<float>(wanted);
      for (float value : {std::nextafter(exact, -1.0f), exact, std::nextafter(exact, 1e9f)})
        for (float x : {value, -value}) {
          std::uint8_t got;
          narrow(&got, &x, 1, format.type);
          CHECK(got == format.encode(x));
        }
    }
  const float huge[] = {1e30f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()};
  for (float value : huge) {
    std::uint8_t got;
    narrow(&got, &value, 1, format.type);
    CHECK(got == format.largest + 1);
  }
}

int main() {
  for (const Format& format : {kE4M3, kE5M2}) {
    check_pairs(format);
    check_narrow(format);
  }
  check_one_rounding();
}
