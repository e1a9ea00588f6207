#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "device/reduce.hpp"

#if defined(__x86_64__)
#pragma GCC push_options
// Without fma: GCC 12 fuses products of complex doubles even where it is told not to (-ffp-contract=off).
#pragma GCC target("avx2,f16c")
#define ACCDP_ISA avx2
#define ACCDP_F16C
#include "device/reduce_kernels.hpp"
#pragma GCC pop_options

namespace accdp {
using Kernel = void (*)(void*, std::span<const void* const>, std::size_t, int);
Kernel kernel_avx2(Datatype type, ReduceOp op) { return avx2::kernel(type, op); }
}  // namespace accdp
#endif
