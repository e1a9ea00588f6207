#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/float16.hpp"
#include "device/reduce.hpp"

#if defined(__x86_64__)
// Without fma: GCC 12 fuses products of complex doubles even where it is told not to (-ffp-contract=off).
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif
#define ACCDP_ISA avx2
#define ACCDP_F16C
#include "device/reduce_kernels.hpp"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace accdp {
using Kernel = void (*)(void*, std::span<const void* const>, std::size_t, int);
Kernel kernel_avx2(Datatype type, ReduceOp op) { return avx2::kernel(type, op); }
}  // namespace accdp
#endif
