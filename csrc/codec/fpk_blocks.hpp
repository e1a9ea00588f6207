#pragma once
#include <array>
#include <bit>
#include <cstring>

#include "base/error.hpp"
#include "base/types.hpp"
#include "codec/block_ops.hpp"

namespace accdp {

// One block of kRow elements. Encoders have the meaning that encode_blocks() asks for, decoders that of
// decode_blocks() (block_stream.hpp).
std::size_t fpk_encode_floats(const BlockOps& ops, Datatype type, const std::byte* block, Bytes room);
void fpk_decode_floats(const BlockOps& ops, Datatype type, ConstBytes in, std::byte* block);
std::size_t fpk_encode_integers(const BlockOps& ops, int width, const std::byte* block, Bytes room);
void fpk_decode_integers(const BlockOps& ops, int width, ConstBytes in, std::byte* block);

inline constexpr std::size_t kPlaneBytes = kRow / 8;

/// First 4 bytes of every encoded block.
struct FpkHeader {
  std::uint8_t rest;    ///< floats: which planes of the rest follow, bit by bit; integers: 1 if there are escapes
  std::uint8_t planes;  ///< planes of the codes; kFpkZeroCode may be added
  std::uint8_t base;
  std::uint8_t unused;  ///< 0
};
static_assert(sizeof(FpkHeader) == 4);

inline std::size_t padded(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

// An element whose code is too large for the planes has all of its bits set there, and its value follows in the list
// of escapes, in the order of the elements.
using EscapeBits = std::array<std::uint64_t, kRow / 64>;

inline EscapeBits escapes_in(const std::byte* planes, int count) {
  EscapeBits bits;
  bits.fill(~std::uint64_t{0});
  for (int b = 0; b < count; ++b) {
    EscapeBits plane;
    std::memcpy(&plane, planes + static_cast<std::size_t>(b) * kPlaneBytes, kPlaneBytes);
    for (std::size_t w = 0; w < bits.size(); ++w) bits[w] &= plane[w];
  }
  return bits;
}

/// The places of the escapes in a block.
struct Escapes {
  std::size_t count = 0;
  std::uint16_t at[kRow + 4];

  void find(const BlockOps& ops, const std::byte* planes, int many) {
    count = ops.list_ones(escapes_in(planes, many).data(), at);
  }
  template <class T>
  void gather(const T* values, std::byte* list) const {
    for (std::size_t i = 0; i < count; ++i) std::memcpy(list + i * sizeof(T), values + at[i], sizeof(T));
  }
  template <class T>
  void scatter(const std::byte* list, T* values) const {
    for (std::size_t i = 0; i < count; ++i) std::memcpy(values + at[i], list + i * sizeof(T), sizeof(T));
  }
};

[[noreturn]] inline void throw_bad_block() { throw CodecError("fpk: damaged block"); }

}  // namespace accdp
