// Standard deviations, by which relative bounds count: right, and never so much too large that a bound would not hold.
#include <bit>
#include <cmath>
#include <limits>

#include "check.hpp"
#include "codec/spread.hpp"
#include "coll/device_tensors.hpp"
#include "coll/stream.hpp"

using namespace accdp;

int main() {
  const float values[] = {1, 2, 3, 4, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
  const double expected = std::sqrt(1.25);
  CHECK(std::abs(standard_deviation(Datatype::kF32, std::as_bytes(std::span(values))) - expected) < 1e-6);
  const double far[] = {1e9 + 1, 1e9 + 2, 1e9 + 3, 1e9 + 4};
  CHECK(std::abs(standard_deviation(Datatype::kF64, std::as_bytes(std::span(far))) - expected) < 1e-6);
  const std::uint16_t halves[] = {0x3c00, 0x4000, 0x4200, 0x4400, 0x7c00};  // 1 2 3 4 inf
  CHECK(std::abs(standard_deviation(Datatype::kF16, std::as_bytes(std::span(halves))) - expected) < 1e-6);
  const std::uint16_t brains[] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x7fc0};  // 1 2 3 4 nan
  CHECK(std::abs(standard_deviation(Datatype::kBF16, std::as_bytes(std::span(brains))) - expected) < 1e-6);
  CHECK(standard_deviation(Datatype::kF32, {}) == 0 && standard_deviation(Datatype::kI32, {}) == 0);
  // Long enough for runs: plain, with what float32 cannot hold, and with a first value far from the others.
  for (const float first : {0.5F, 1e30F, std::numeric_limits<float>::quiet_NaN(), 1e5F}) {
    std::vector<float> many(20'000);
    std::vector<std::uint16_t> brain(many.size());
    for (std::size_t i = 0; i < many.size(); ++i) {
      many[i] = i == 0 ? first : static_cast<float>(static_cast<int>(i * 2654435761u >> 24) - 128) / 128;
      brain[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(many[i]) >> 16);
    }
    for (bool is_brain : {false, true}) {
      double sum = 0, square = 0, n = 0;
      for (std::size_t i = 0; i < many.size(); ++i) {
        const double x = is_brain ? std::bit_cast<float>(std::uint32_t{brain[i]} << 16) : many[i];
        if (std::isfinite(x)) sum += x, square += x * x, ++n;
      }
      const double wanted = std::sqrt(square / n - sum / n * (sum / n));
      const ConstBytes data = is_brain ? std::as_bytes(std::span(brain)) : std::as_bytes(std::span(many));
      const double got = standard_deviation(is_brain ? Datatype::kBF16 : Datatype::kF32, data);
      CHECK(std::abs(got / wanted - 1) < 1e-4);
    }
  }
  // Nearly all one value, some deviations away from the first: the roundings of the squares all go one way.
  for (const float outlier : {1.5F, 2.0F, 3.0F, 9.0F})
    for (std::size_t every : {3, 10, 50, 81}) {
      std::vector<float> most(2048, 1.1F);
      for (std::size_t i = 7; i < most.size(); i += every) most[i] = 1.1F * outlier;
      most[0] = 0;
      long double sum = 0, square = 0;
      for (float x : most) sum += x, square += static_cast<long double>(x) * x;
      const long double mean = sum / most.size(), wanted = std::sqrt(square / most.size() - mean * mean);
      const std::vector<Piece> pieces{{std::as_writable_bytes(std::span(most)), Datatype::kF32}};
      const double got = deviations_of(pieces, nullptr)[0];
      CHECK(got <= wanted && got > wanted * (1 - 2 * kSpreadError));
    }
  const float same[] = {5, 5, 5};
  CHECK(standard_deviation(Datatype::kF32, std::as_bytes(std::span(same))) == 0);
}
