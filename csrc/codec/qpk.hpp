#pragma once
#include <cstddef>

#include "base/types.hpp"
#include "codec/block_ops.hpp"

namespace accdp {

// qpk: error-bounded. Elements are rounded to multiples of a step (quantiser.hpp); blocks of 256 become as many bit
// planes as their largest number has (the frame: block_stream.hpp).

/// As CodecRow's; `ops` choose the loops and do not change the bytes. Throws UsageError if the bound is not finite
/// and > 0.
std::size_t qpk_encode(Datatype type, double bound, ConstBytes in, Bytes out, const BlockOps& ops = block_ops());
void qpk_decode(Datatype type, ConstBytes in, Bytes out, const BlockOps& ops = block_ops());

}  // namespace accdp
