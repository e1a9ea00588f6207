#pragma once
#include <cstddef>

#include "base/types.hpp"

namespace accdp {

/// A run of bytes that are nearly all the same, stored as that byte and then its exceptions in order, each as
/// u8 distance from where the last one ended and u8 value. Distance 255 is no exception: 255 usual bytes, read on.
/// Where one byte in a hundred differs, this takes half of what the Huffman coder behind a fast match finder does.

/// Returns the bytes written to `out`, or 0 where they do not fit.
std::size_t encode_sparse(std::byte usual, ConstBytes in, Bytes out);

/// Fills all of `out`; false where `in` is nothing that encode_sparse() writes for that many bytes.
bool decode_sparse(ConstBytes in, Bytes out);

}  // namespace accdp
