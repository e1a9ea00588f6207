#pragma once
#include "base/types.hpp"

namespace accdp {

/// A stream of encode_sparse() whose distances and values are coded apart by zstd's Huffman coder, since each has
/// habits of its own: u8 usual byte, u32 number of distances, u32 bytes of their frame, that frame, the frame of the
/// values. Weights that moved by one unit in a few places come to a third of the plain form.

/// Returns the bytes written to `out`, or 0 where they do not fit.
std::size_t pack_sparse(ConstBytes sparse, Bytes out);

/// Fills all of `out`, which is what encode_sparse() was given; false where `in` is nothing of the kind.
bool decode_packed_sparse(ConstBytes in, Bytes out);

}  // namespace accdp
