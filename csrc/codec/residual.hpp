#pragma once
#include "base/types.hpp"

namespace accdp {

/// out[i] = (exact[i] - kept[i]) * factor, in float32, of float16, bfloat16, float32 or float64 values; the largest
/// float32 of that sign where it is larger, 0 where either is not finite: NaN and infinities arrive as they are. What
/// lossy encoding left out, for the caller to add to the next message.
void residual(Datatype type, ConstBytes exact, ConstBytes kept, double factor, float* out) noexcept;

}  // namespace accdp
