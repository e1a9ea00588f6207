#pragma once
#include "base/types.hpp"

namespace accdp {

/// Standard deviation of the finite values of float16, bfloat16, float32 or float64 data; 0 for fewer than two of them
/// and for other datatypes. One pass, about memory speed.
double standard_deviation(Datatype type, ConstBytes data) noexcept;
/// It is wrong by less than this share: float16 and float64 by much less, the others have sums in float32.
constexpr double kSpreadError = 1.5e-4;

}  // namespace accdp
