#pragma once

namespace accdp {

#if defined(__x86_64__)
bool has_avx2() noexcept;  ///< and F16C, BMI and POPCNT, which the loops for AVX2 use as well
#endif

}  // namespace accdp
