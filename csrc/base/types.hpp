#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace accdp {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

template <class Blocks>
std::size_t total_bytes(const Blocks& blocks) {
  std::size_t bytes = 0;
  for (const auto& block : blocks) bytes += block.size();
  return bytes;
}

enum class Datatype : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kC128,
  kF8E4M3,  ///< finite: the largest number is 448, one NaN, no infinities
  kF8E5M2,  ///< as float16, with fewer bits
  kBytes,   ///< anything else, moved but never reduced; one element is one byte
};

enum class ReduceOp : std::uint8_t { kSum, kAvg, kProd, kMin, kMax, kBand, kBor, kBxor };

std::size_t element_bytes(Datatype type) noexcept;
const char* name_of(Datatype type) noexcept;
const char* name_of(ReduceOp op) noexcept;
std::optional<ReduceOp> reduce_op_named(std::string_view name) noexcept;
bool is_complex(Datatype type) noexcept;
bool is_real_float(Datatype type) noexcept;  ///< of 16 bits or more: those that may have an error bound
/// Whether sums of the type are made in float32: floats of 8 and 16 bits.
bool is_short_float(Datatype type) noexcept;

}  // namespace accdp
