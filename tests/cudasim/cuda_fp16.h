#pragma once
// Stand-in for CUDA's float16 conversions: the compiler's own.

#include "base/float16.hpp"

using __half = accdp::Float16;
inline float __half2float(__half value) { return static_cast<float>(value); }
inline __half __float2half_rn(float value) { return static_cast<__half>(value); }
