#pragma once
// Inputs for the codec tests. They are made by integer arithmetic and exact float arithmetic, so that they are the same
// with every compiler and library. A file of its own, because the tests that use it are not optimised.
#include <cstdint>
#include <vector>

#include "base/types.hpp"
#include "check.hpp"

namespace accdp {

using Buffer = std::vector<std::byte>;

struct Random {
  std::uint64_t state = 1;
  std::uint32_t next() {
    state = state * 6364136223846793005 + 1442695040888963407;
    return static_cast<std::uint32_t>(state >> 32);
  }
  std::uint32_t below(std::uint32_t limit) { return next() % limit; }
  /// Bell-shaped, standard deviation 1: twelve uniform numbers less their mean.
  float bell();
};

/// To 16 bits; float16 only within its normal range, else zero.
std::uint16_t truncated(Datatype type, float value);

void put(Buffer& data, Datatype type, std::size_t i, float value);

enum class Kind { kBits, kBell, kRectified, kSparse, kConstant, kWide, kSmallIntegers, kRareLarge };
inline constexpr Kind kKinds[] = {Kind::kBits,     Kind::kBell, Kind::kRectified,     Kind::kSparse,
                                  Kind::kConstant, Kind::kWide, Kind::kSmallIntegers, Kind::kRareLarge};

Buffer make(Kind kind, Datatype type, std::size_t count, std::uint64_t seed = 1);

std::uint64_t fnv(ConstBytes data);

/// A stream that was damaged in one of the ways in which streams are: bits, bytes, words, length.
Buffer damaged(const Buffer& stream, Random& random);

}  // namespace accdp
