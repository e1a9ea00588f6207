#pragma once
#include "base/types.hpp"

namespace accdp {

/// out[i] = (exact[i] - kept[i]) * factor, in float32, of float16, bfloat16, float32 or float64 values; 0 where that is
/// not finite. What lossy encoding left out, for the caller to add to the next message.
void residual(Datatype type, ConstBytes exact, ConstBytes kept, double factor, float* out) noexcept;

}  // namespace accdp
