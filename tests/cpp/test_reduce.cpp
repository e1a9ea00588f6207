// Elementwise reductions against a loop in long double: every type and operation, odd counts and addresses.
#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "device/reduce.hpp"

using namespace accdp;

// Values are small integers, exact in every type; float16 and bfloat16 are made from their bits.
template <class T>
T cast(int value) {
  return static_cast<T>(value);
}
struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};
template <>
Brain cast<Brain>(int value) {
  const float wide = static_cast<float>(value);
  std::uint32_t bits;
  std::memcpy(&bits, &wide, 4);
  return {static_cast<std::uint16_t>(bits >> 16)};
}
template <>
Half cast<Half>(int value) {
  if (value == 0) return {0};
  int exponent = 0;
  const double fraction = std::frexp(std::abs(value), &exponent);  // 0.5 <= fraction < 1
  const int mantissa = static_cast<int>(fraction * 2048) - 1024;
  return {static_cast<std::uint16_t>((value < 0 ? 0x8000 : 0) | ((exponent + 14) << 10) | mantissa)};
}

int expected(ReduceOp op, int a, int b, int c) {
  switch (op) {
    case ReduceOp::kSum: return a + b + c;
    case ReduceOp::kAvg: return (a + b + c) / 3;
    case ReduceOp::kProd: return a * b * c;
    case ReduceOp::kMin: return std::min({a, b, c});
    case ReduceOp::kMax: return std::max({a, b, c});
    case ReduceOp::kBand: return a & b & c;
    case ReduceOp::kBor: return a | b | c;
    case ReduceOp::kBxor: return a ^ b ^ c;
  }
  return 0;
}

template <class T>
void check_type(Datatype type, const std::vector<ReduceOp>& ops) {
  CHECK(element_bytes(type) == sizeof(T));
  for (ReduceOp op : ops) {
    check_reducible(type, op);
    for (std::size_t count : {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 67, 1000}) {
      for (std::size_t offset : {0, 1, 3}) {  // any alignment
        std::vector<std::byte> memory[4];
        for (auto& block : memory) block.resize(offset + count * sizeof(T));
        std::vector<T> wanted;
        for (std::size_t i = 0; i < count; ++i) {
          const int c = 1 + static_cast<int>(i % 4), values[3] = {c, c + 3 * static_cast<int>(i % 2), c};
          for (int k = 0; k < 3; ++k) {
            const T value = cast<T>(values[k]);
            std::memcpy(memory[k].data() + offset + i * sizeof(T), &value, sizeof(T));
          }
          wanted.push_back(cast<T>(expected(op, values[0], values[1], values[2])));
        }
        const void* srcs[3];
        for (int k = 0; k < 3; ++k) srcs[k] = memory[k].data() + offset;
        reduce(memory[3].data() + offset, srcs, count, {type, op, 3});
        CHECK(count == 0 || std::memcmp(memory[3].data() + offset, wanted.data(), count * sizeof(T)) == 0);
        reduce(memory[1].data() + offset, srcs, count, {type, op, 3});  // in place of a source
        CHECK(count == 0 || std::memcmp(memory[1].data() + offset, wanted.data(), count * sizeof(T)) == 0);
      }
    }
  }
}

void check_bools() {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kBand, ReduceOp::kBor,
                      ReduceOp::kBxor}) {
    for (int bits = 0; bits < 4; ++bits) {
      const std::uint8_t a = bits & 1, b = bits >> 1;
      const bool both = op == ReduceOp::kProd || op == ReduceOp::kMin || op == ReduceOp::kBand;
      std::uint8_t result = 9;
      const void* srcs[] = {&a, &b};
      reduce(&result, srcs, 1, {Datatype::kBool, op});
      CHECK(result == (op == ReduceOp::kBxor ? (a ^ b) : both ? (a & b) : (a | b)));
    }
  }
}

int main() {
  using enum ReduceOp;
  const std::vector<ReduceOp> integer{kSum, kProd, kMin, kMax, kBand, kBor, kBxor}, real{kSum, kAvg, kProd, kMin, kMax},
      complex{kSum, kProd};
  check_type<std::uint8_t>(Datatype::kU8, integer);
  check_type<std::int8_t>(Datatype::kI8, integer);
  check_type<std::uint16_t>(Datatype::kU16, integer);
  check_type<std::int16_t>(Datatype::kI16, integer);
  check_type<std::uint32_t>(Datatype::kU32, integer);
  check_type<std::int32_t>(Datatype::kI32, integer);
  check_type<std::uint64_t>(Datatype::kU64, integer);
  check_type<std::int64_t>(Datatype::kI64, integer);
  check_type<Half>(Datatype::kF16, real);
  check_type<Brain>(Datatype::kBF16, real);
  check_type<float>(Datatype::kF32, real);
  check_type<double>(Datatype::kF64, real);
  check_type<std::complex<float>>(Datatype::kC64, complex);
  check_type<std::complex<double>>(Datatype::kC128, complex);
  check_bools();

  // float16 sums are rounded once: 2048 + 1 + 1 is 2050, but 2048 if rounded after each step.
  const Half big = cast<Half>(2048), one = cast<Half>(1);
  Half sum{};
  const void* srcs[] = {&big, &one, &one};
  reduce(&sum, srcs, 1, {Datatype::kF16, kSum});
  CHECK(sum.bits == cast<Half>(2050).bits);

  CHECK_THROWS(check_reducible(Datatype::kF32, kBand), UsageError, "");
  CHECK_THROWS(check_reducible(Datatype::kC64, kMax), UsageError, "");
  CHECK_THROWS(check_reducible(Datatype::kBool, kAvg), UsageError, "");
  CHECK_THROWS(check_reducible(Datatype::kBytes, kSum), UsageError, "");
  std::printf("instruction set: %s\n", reduce_isa());
}
