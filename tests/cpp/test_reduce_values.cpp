// What reductions do with values that are no small integers: rounding, NaN, overflow, averages, many sources. The loops
// for every processor and those chosen for this one must agree.
#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "base/float16.hpp"
#include "check.hpp"
#include "device/reduce.hpp"

#define ACCDP_ISA portable
#include "device/reduce_kernels.hpp"

using namespace accdp;
using enum ReduceOp;

using Words = std::vector<std::uint16_t>;  // float16 or bfloat16, as bits

/// Reduces vectors of one length by both sets of loops.
template <class T>
std::vector<T> reduced(Datatype type, ReduceOp op, const std::vector<std::vector<T>>& sources, int divisor = 0) {
  std::vector<const void*> places;
  for (const std::vector<T>& source : sources) places.push_back(source.data());
  const std::size_t count = sources[0].size();
  std::vector<T> chosen(count), portable(count);
  reduce(chosen.data(), places, count, {type, op, divisor});
  portable::kernel(type, op)(portable.data(), places, count, op == kAvg ? divisor : 0);
  CHECK(std::memcmp(chosen.data(), portable.data(), count * sizeof(T)) == 0);
  return chosen;
}

// ---- 16-bit floats, decoded and encoded by arithmetic, not by conversion instructions ------------------------------

struct Format {
  Datatype type;
  int mantissa_bits, bias;

  double decode(std::uint16_t bits) const {
    const int exponent = (bits & 0x7fff) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (0x7fff >> mantissa_bits))
      return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  /// To nearest, ties to the even mantissa; beyond the largest number by half a step: infinity.
  std::uint16_t encode(double value) const {
    const std::uint16_t infinity = 0x7fff >> mantissa_bits << mantissa_bits;
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    value = std::abs(value);
    std::uint16_t low = 0, high = infinity;  // decode() grows with the bits of positive numbers
    while (high - low > 1) {
      const std::uint16_t middle = static_cast<std::uint16_t>((low + high) / 2);
      (decode(middle) <= value ? low : high) = middle;
    }
    // What infinity would be if the format went on: the next power of two.
    const double above = high == infinity ? 2 * decode(infinity - (1 << mantissa_bits)) : decode(high);
    const double down = value - decode(low), up = above - value;
    return sign | (down < up || (down == up && low % 2 == 0) ? low : high);
  }
};
constexpr Format kHalf{Datatype::kF16, 10, 15}, kBrain{Datatype::kBF16, 7, 127};

bool is_nan(const Format& format, std::uint16_t bits) { return std::isnan(format.decode(bits)); }

void check_rounding(const Format& format) {
  std::mt19937 random(2);
  Words a, b;
  for (int bits = 0; bits < 0x10000; ++bits) {
    if (is_nan(format, static_cast<std::uint16_t>(bits))) continue;
    // Half of the time near in size, where sums need rounding most.
    const int other =
        random() % 2 ? static_cast<int>(random()) : bits ^ static_cast<int>(random() % (4 << format.mantissa_bits));
    a.push_back(static_cast<std::uint16_t>(bits));
    b.push_back(static_cast<std::uint16_t>(other));
  }
  const Words copied = reduced<std::uint16_t>(format.type, kSum, {a});
  CHECK(copied == a);
  const Words sums = reduced<std::uint16_t>(format.type, kSum, {a, b});
  const Words products = reduced<std::uint16_t>(format.type, kProd, {a, b});
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float x = static_cast<float>(format.decode(a[i])), y = static_cast<float>(format.decode(b[i]));
    const float sum = x + y, product = x * y;
    CHECK(std::isnan(sum) ? is_nan(format, sums[i]) : sums[i] == format.encode(sum));
    CHECK(std::isnan(product) ? is_nan(format, products[i]) : products[i] == format.encode(product));
  }
}

// ---- NaN
// -------------------------------------------------------------------------------------------------------------

/// A NaN of any rank wins in min and max, and in no other place; wherever in a vector of the processor it stands.
template <class T>
void check_nan(Datatype type, T one, T two, T nan, const std::function<bool(T)>& is) {
  for (ReduceOp op : {kMin, kMax})
    for (std::size_t at = 0; at < 37; ++at)
      for (int holder = 0; holder < 3; ++holder) {
        std::vector<std::vector<T>> sources{std::vector<T>(37, one), std::vector<T>(37, two), std::vector<T>(37, one)};
        sources[holder][at] = nan;
        const std::vector<T> result = reduced(type, op, sources);
        for (std::size_t i = 0; i < 37; ++i)
          CHECK(i == at ? is(result[i]) : std::memcmp(&result[i], op == kMin ? &one : &two, sizeof(T)) == 0);
      }
}

void check_nans() {
  const auto half = [](std::uint16_t bits) { return is_nan(kHalf, bits); };
  const auto brain = [](std::uint16_t bits) { return is_nan(kBrain, bits); };
  const auto plain = [](auto value) { return std::isnan(value); };
  check_nan<float>(Datatype::kF32, 1, 2, std::numeric_limits<float>::quiet_NaN(), plain);
  check_nan<double>(Datatype::kF64, 1, 2, std::numeric_limits<double>::quiet_NaN(), plain);
  check_nan<std::uint16_t>(Datatype::kF16, kHalf.encode(1), kHalf.encode(2), 0x7e00, half);
  check_nan<std::uint16_t>(Datatype::kBF16, kBrain.encode(1), kBrain.encode(2), 0x7fc0, brain);
  // All bits of the mantissa set: rounding must not carry it into a number.
  CHECK(brain(reduced<std::uint16_t>(Datatype::kBF16, kSum, {{0x7fff}, {0}})[0]));
  CHECK(half(reduced<std::uint16_t>(Datatype::kF16, kSum, {{0xffff}, {0}})[0]));
}

// ---- integers
// --------------------------------------------------------------------------------------------------------

/// Sums and products wrap around, as in NumPy and torch.
template <class T>
void check_wrap(Datatype type) {
  std::mt19937_64 random(3);
  std::vector<std::vector<T>> sources(3);
  for (std::vector<T>& source : sources)
    for (int i = 0; i < 1111; ++i) source.push_back(static_cast<T>(random()));
  const std::vector<T> sums = reduced(type, kSum, sources), products = reduced(type, kProd, sources);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    std::uint64_t sum = 0, product = 1;
    for (const std::vector<T>& source : sources) {
      sum += static_cast<std::uint64_t>(source[i]);
      product *= static_cast<std::uint64_t>(source[i]);
    }
    CHECK(sums[i] == static_cast<T>(sum) && products[i] == static_cast<T>(product));
  }
}

/// An average of integers is the sum, divided towards zero.
template <class T>
void check_average(Datatype type) {
  constexpr T most = std::numeric_limits<T>::max(), least = std::numeric_limits<T>::min();
  CHECK((reduced<T>(type, kAvg, {{1, 7, 0}, {1, 7, 1}, {0, 7, 1}}, 3) == std::vector<T>{0, 7, 0}));
  CHECK((reduced<T>(type, kAvg, {{least}, {0}}, 2) == std::vector<T>{static_cast<T>(least / 2)}));
  CHECK((reduced<T>(type, kAvg, {{most}}, 1) == std::vector<T>{most}));
  CHECK((reduced<T>(type, kAvg, {{10}, {12}}, 0) == std::vector<T>{22}));  // a partial sum is not divided yet
  if (std::is_signed_v<T>)
    CHECK((reduced<T>(type, kAvg, {{static_cast<T>(-7)}, {0}}, 2) == std::vector<T>{static_cast<T>(-3)}));
}

/// Beside and on multiples of the number of ranks, and anywhere, by numbers of ranks few and many.
template <class T>
void check_quotients(Datatype type) {
  std::mt19937_64 random(7);
  for (const std::int64_t by : {2, 3, 7, 8, 10, 255, 4096, 65'537, 1'000'003, std::numeric_limits<int>::max()}) {
    std::vector<T> sums;
    for (int i = 0; i < 3000; ++i) {
      const T any = static_cast<T>(random());
      const T multiple = static_cast<T>(any / by * by);
      sums.insert(sums.end(), {any, multiple, static_cast<T>(multiple - 1), static_cast<T>(multiple + 1)});
    }
    sums.insert(sums.end(), {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()});
    std::vector<T> wanted(sums);
    for (T& value : wanted) {
      if constexpr (std::is_signed_v<T>)
        value = static_cast<T>(value / by);
      else
        value = static_cast<T>(value / static_cast<std::uint64_t>(by));
    }
    CHECK(reduced<T>(type, kAvg, {sums}, static_cast<int>(by)) == wanted);
  }
}

/// Component by component, also of what is infinite.
void check_complex_average() {
  const float infinity = std::numeric_limits<float>::infinity();
  using Values = std::vector<std::complex<float>>;
  const Values found = reduced<std::complex<float>>(Datatype::kC64, kAvg, {Values(9, {infinity, 3})}, 3);
  CHECK(found == Values(9, {infinity, 1}));
}

template <class T>
void check_integer(Datatype type) {
  check_wrap<T>(type);
  check_average<T>(type);
  check_quotients<T>(type);
}

/// More ranks than a small integer can count.
void check_many_sources() {
  for (int ranks : {127, 128, 200, 255, 256, 300}) {
    std::vector<std::vector<std::int8_t>> small(ranks, {0});
    std::vector<std::vector<std::uint8_t>> unsigned_small(ranks, {0});
    std::vector<std::vector<float>> real(ranks, {1});
    small[1][0] = unsigned_small[1][0] = 100;
    CHECK(reduced(Datatype::kI8, kAvg, small, ranks)[0] == 0);
    CHECK(reduced(Datatype::kU8, kAvg, unsigned_small, ranks)[0] == 0);
    CHECK(reduced(Datatype::kF32, kAvg, real, ranks)[0] == 1);
    CHECK(reduced(Datatype::kI8, kMax, small)[0] == 100);
  }
}

/// Products of complex numbers are sums of products: a fused multiply-add in one set of loops would round differently.
template <class Real>
void check_complex_products(Datatype type) {
  std::mt19937 random(11);
  std::normal_distribution<Real> normal;
  std::vector<std::vector<std::complex<Real>>> sources(3);
  for (auto& source : sources)
    for (int i = 0; i < 1001; ++i) source.emplace_back(normal(random), normal(random));
  reduced(type, kProd, sources);
}

int main() {
  for (const Format& format : {kHalf, kBrain})
    for (int bits = 0; bits < 0x10000; ++bits)
      if (const auto word = static_cast<std::uint16_t>(bits); !is_nan(format, word))
        CHECK(format.encode(format.decode(word)) == word);
  check_rounding(kHalf);
  check_rounding(kBrain);
  check_nans();
  check_integer<std::uint8_t>(Datatype::kU8);
  check_integer<std::int8_t>(Datatype::kI8);
  check_integer<std::uint16_t>(Datatype::kU16);
  check_integer<std::int16_t>(Datatype::kI16);
  check_integer<std::uint32_t>(Datatype::kU32);
  check_integer<std::int32_t>(Datatype::kI32);
  check_integer<std::uint64_t>(Datatype::kU64);
  check_integer<std::int64_t>(Datatype::kI64);
  const std::vector<std::complex<float>> a(5, {1, 2}), b(5, {3, -4});
  CHECK(
      (reduced<std::complex<float>>(Datatype::kC64, kAvg, {a, b}, 2) == std::vector<std::complex<float>>(5, {2, -1})));
  CHECK((reduced<std::complex<float>>(Datatype::kC64, kProd, {a, b}) == std::vector<std::complex<float>>(5, {11, 2})));
  check_complex_average();
  check_complex_products<float>(Datatype::kC64);
  check_complex_products<double>(Datatype::kC128);
  check_many_sources();
}
