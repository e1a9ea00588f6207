#pragma once
// What the block formats on the device share (cuda_kernels.hpp has what a format is for). A format has
//   summary(x), merge(a, b)          what a block's segments together tell about its code
//   count(x, merged, counts)         per possible code, elements of the segment
//   plan(merged, sums)               the choice of the code, from the sums of those counts
//   write(x, s, plan, counts, out)   segment s of a block that begins at `out`; counts: those of its first segment
//   read(in, bytes, s, step, x)      false where no encoder writes such a block; reads nothing outside of it
#include "codec/cuda_kernels.hpp"

namespace accdp::device_codec {

/// Word of bit plane `b`.
template <class T>
__device__ std::uint32_t plane_word(const T (&codes)[kSegment], int b) {
  std::uint32_t word = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < kSegment; ++i) word |= (static_cast<std::uint32_t>(codes[i]) >> b & 1) << i;
  return word;
}
template <class T>
__device__ void add_plane(std::uint32_t word, int b, T (&codes)[kSegment]) {
#pragma unroll
  for (std::uint32_t i = 0; i < kSegment; ++i) codes[i] = static_cast<T>(codes[i] | (word >> i & 1) << b);
}

__device__ inline std::uint32_t ones_in(std::uint32_t word) {
  std::uint32_t count = 0;
  for (; word; word &= word - 1) ++count;
  return count;
}
__device__ inline std::uint32_t bit_width(std::uint32_t value) {
  std::uint32_t bits = 0;
  for (; value; value >>= 1) ++bits;
  return bits;
}
__device__ inline std::uint32_t padded_to_words(std::uint32_t bytes) { return (bytes + 3) / 4 * 4; }

struct NoParameters {};

}  // namespace accdp::device_codec
