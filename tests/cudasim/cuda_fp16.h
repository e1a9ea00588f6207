#pragma once
// Stand-in for CUDA's float16 conversions: the compiler's own.

using __half = _Float16;
inline float __half2float(__half value) { return static_cast<float>(value); }
inline __half __float2half_rn(float value) { return static_cast<__half>(value); }
