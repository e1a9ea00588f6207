#pragma once
#include <cstddef>

#include "base/types.hpp"
#include "codec/block_ops.hpp"

namespace accdp {

// qhuff: error-bounded, as qpk, with the numbers entropy-coded. A chunk's numbers (quantiser.hpp), all in one run, are
// taken apart into two byte planes:
//
//   float64 step
//   a bit for each whole block, the first the lowest of its byte: whether the block stays as it is; padded with zeros
//   the planes (plane_store.hpp), upper bytes first, of the blocks that do not
//   the blocks that do
//   the elements that fill no block
//
// At hundredths of a standard deviation the upper plane is nearly all zero and costs next to nothing, so there is one
// symbol per element for the Huffman coder, whatever the datatype's width.

/// As CodecRow's; `ops` choose the loops and do not change the bytes. Throws UsageError if the bound is not finite
/// and > 0.
std::size_t qhuff_encode(Datatype type, double bound, ConstBytes in, Bytes out, const BlockOps& ops = block_ops());
void qhuff_decode(Datatype type, ConstBytes in, Bytes out, const BlockOps& ops = block_ops());

}  // namespace accdp
