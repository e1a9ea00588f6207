#pragma once
#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/types.hpp"

namespace accdp {

// The stream of fpk and qpk: for every whole block of the chunk its encoded bytes as a 16-bit number, padded to 8 bytes
// together; then the blocks; then the elements that fill no block, as they are. Encoded blocks are multiples of 4
// bytes, so that a GPU which has the stream at an aligned address reads whole words. A block of 0 bytes is all zeros,
// one of `block_bytes` is not encoded.

inline std::size_t size_table_bytes(std::size_t blocks) { return (2 * blocks + 7) / 8 * 8; }

inline bool all_zero(const std::byte* data, std::size_t bytes) {  // bytes: a multiple of 64
  for (std::size_t at = 0; at < bytes; at += 64) {
    std::uint64_t words[8], any = 0;
    std::memcpy(words, data + at, 64);
    for (std::uint64_t word : words) any |= word;
    if (any) return false;
  }
  return true;
}

/// Calls encode_block(const std::byte* block, Bytes room), which writes the block if it fits into the room and returns
/// its bytes in any case; block_bytes or more: it is better left as it is. Returns the bytes of the stream, or 0 where
/// it does not fit into `out`.
template <class EncodeBlock>
std::size_t encode_blocks(ConstBytes in, std::size_t block_bytes, Bytes out, EncodeBlock&& encode_block) {
  const std::size_t blocks = in.size() / block_bytes;
  std::size_t end = size_table_bytes(blocks);
  if (end > out.size()) return 0;
  if (blocks > 0) std::memset(out.data(), 0, end);
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::byte* block = in.data() + b * block_bytes;
    if (all_zero(block, block_bytes)) continue;
    const Bytes room = out.subspan(end);
    std::size_t bytes = encode_block(block, room);
    if (bytes >= block_bytes) bytes = block_bytes;
    if (bytes > room.size()) return 0;
    if (bytes == block_bytes) std::memcpy(room.data(), block, block_bytes);
    const auto entry = static_cast<std::uint16_t>(bytes);
    std::memcpy(out.data() + 2 * b, &entry, 2);
    end += bytes;
  }
  const ConstBytes tail = in.subspan(blocks * block_bytes);
  if (tail.size() > out.size() - end) return 0;
  std::copy(tail.begin(), tail.end(), out.begin() + static_cast<std::ptrdiff_t>(end));
  return end + tail.size();
}

/// Calls decode_block(ConstBytes encoded, std::byte* block), which fills block_bytes or throws CodecError. Every read
/// of the stream lies within the span that is passed, whatever the stream says.
template <class DecodeBlock>
void decode_blocks(ConstBytes in, std::size_t block_bytes, Bytes out, DecodeBlock&& decode_block) {
  const std::size_t blocks = out.size() / block_bytes;
  std::size_t at = size_table_bytes(blocks);
  if (at > in.size()) throw CodecError("compressed chunk: ends within its table of sizes");
  for (std::size_t b = 0; b < blocks; ++b) {
    std::byte* block = out.data() + b * block_bytes;
    std::uint16_t bytes;
    std::memcpy(&bytes, in.data() + 2 * b, 2);
    if (bytes > block_bytes || bytes > in.size() - at) throw CodecError("compressed chunk: a block is too large");
    if (bytes == 0)
      std::memset(block, 0, block_bytes);
    else if (bytes == block_bytes)
      std::memcpy(block, in.data() + at, block_bytes);
    else
      decode_block(in.subspan(at, bytes), block);
    at += bytes;
  }
  const Bytes tail = out.subspan(blocks * block_bytes);
  if (in.size() - at != tail.size()) throw CodecError("compressed chunk: of another length than announced");
  std::copy_n(in.begin() + static_cast<std::ptrdiff_t>(at), tail.size(), tail.begin());
}

}  // namespace accdp
