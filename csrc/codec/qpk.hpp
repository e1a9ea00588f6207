#pragma once
#include <cstddef>

#include "base/types.hpp"
#include "codec/block_ops.hpp"

namespace accdp {

// qpk: error-bounded. Elements are rounded to multiples of a step, which precedes the stream as a float64; blocks of
// 256 become as many bit planes as their largest number has (the frame: block_stream.hpp). -0 may come back as +0;
// blocks with NaN, infinity or numbers beyond 16 bits stay as they are.

bool qpk_takes(Datatype type) noexcept;

/// As CodecRow's; `ops` choose the loops and do not change the bytes. Throws UsageError if the bound is not finite
/// and > 0.
std::size_t qpk_encode(Datatype type, double bound, ConstBytes in, Bytes out, const BlockOps& ops = block_ops());
void qpk_decode(Datatype type, ConstBytes in, Bytes out, const BlockOps& ops = block_ops());

/// The step that keeps |x - x'| <= bound for elements up to `largest` in magnitude (float32: any); 0 if none can.
float qpk_step(Datatype type, double bound, double largest);

}  // namespace accdp
