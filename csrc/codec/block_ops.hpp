#pragma once
#include <cstddef>
#include <cstdint>

#include "base/types.hpp"

namespace accdp {

/// Blocks are taken apart into byte rows: row b holds byte b of every element, and row b + 1 starts kRow bytes later.
inline constexpr std::size_t kRow = 512;

struct CodeCounts {
  std::uint16_t at_least[16];  ///< elements with largest - element >= j, for j in 0..10 and 14, 15
  std::uint16_t zeros;
};

/// How integers are stored: the lower `planes` bits, and as many escapes from all ones there.
struct PlaneChoice {
  int planes;
  std::size_t escapes;
};

/// Exponents as distances below a base: 0 .. first_unused - 1 are codes, all others become `escape`.
struct CodeRange {
  std::uint8_t base, first_unused, escape;
  bool has_zero;  ///< exponent 0 has the code first_unused, which is then not the escape
};

/// The inner loops of fpk and qpk, once in plain C++ and once with AVX2. Both give the same bytes for every input.
/// `count` is a multiple of 32, at most kRow. Pointers into a stream or a tensor may have any alignment.
struct BlockOps {
  /// Elements of `width` (2 or 4) bytes to byte rows, and back.
  void (*split)(const std::byte* in, int width, std::size_t count, std::uint8_t* rows);
  void (*merge)(const std::uint8_t* rows, int width, std::size_t count, std::byte* out);

  /// Bit planes: the lowest `planes` bits of a row; plane b is count / 32 words of 32 bits, in which the least
  /// significant bit is the first element: the words that __ballot_sync gives to a CUDA warp.
  void (*pack)(const std::uint8_t* row, std::size_t count, int planes, std::byte* out);
  void (*unpack)(const std::byte* in, std::size_t count, int planes, std::uint8_t* row);

  /// Numbers of the bits that are set among kRow; returns how many. `at` has room for kRow + 4.
  std::size_t (*list_ones)(const std::uint64_t* words, std::uint16_t* at);

  // All of these work on kRow elements.
  /// The two upper bytes of a bfloat16 or float32, sign and exponent | last exponent bit and mantissa, to the exponent
  /// (in `high`) and to sign and mantissa (in `low`); and back.
  void (*part_exponents)(std::uint8_t* high, std::uint8_t* low);
  void (*join_exponents)(std::uint8_t* high, std::uint8_t* low);
  /// The same for the upper byte of a float16, whose other bits (sign, two of mantissa) become three bits of `top`.
  void (*part_half)(std::uint8_t* high, std::uint8_t* top);
  void (*join_half)(std::uint8_t* high, const std::uint8_t* top);
  std::uint8_t (*largest)(const std::uint8_t* row);
  bool (*any)(const std::uint8_t* row);  ///< is any byte not zero?
  void (*count_codes)(const std::uint8_t* row, std::uint8_t largest, CodeCounts& counts);
  void (*make_codes)(const std::uint8_t* exponents, CodeRange range, std::uint8_t* codes);
  void (*from_codes)(std::uint8_t* row, CodeRange range);  ///< escapes become any value

  /// Integers of `width` (2 or 4) bytes; the values to the smaller of themselves and all ones.
  PlaneChoice (*choose_planes)(const void* values, int width);
  void (*clip)(const void* values, int width, int planes, void* codes);

  /// 256 floats to zigzag numbers of 16 bits in two byte rows. Returns the bits of the largest, or -1 if an element is
  /// not finite or |x * inverse| > limit.
  int (*quantise)(Datatype type, const std::byte* in, float inverse, float limit, std::uint8_t* rows);
  void (*dequantise)(Datatype type, const std::uint8_t* rows, float delta, std::byte* out);
};

const BlockOps& portable_block_ops() noexcept;
const BlockOps& block_ops() noexcept;  ///< the fastest that this processor runs

}  // namespace accdp
