#pragma once
#include "base/types.hpp"
#include "codec/sparse_plane.hpp"

namespace accdp {

/// Exceptions whose distances and values are coded apart by zstd's Huffman coder, since each has habits of its own: u8
/// usual byte, u32 number of distances, u32 bytes of their frame, that frame, the frame of the values. Weights that
/// moved by one unit in a few places come to a third of the plain form.

/// Returns the bytes written to `out`, or 0 where they do not fit.
std::size_t pack_sparse(std::byte usual, const Exceptions& exceptions, Bytes out);

/// Fills all of `out`; false where `in` is nothing of the kind.
bool decode_packed_sparse(ConstBytes in, Bytes out);

}  // namespace accdp
