#pragma once
#include <cuda_runtime.h>

#include <span>

#include "device/reduce.hpp"

namespace accdp {

constexpr std::size_t kMostSources = 32;

/// reduce() of device/reduce.hpp on device memory, in the order of the stream: the same bits, but for which NaN a
/// NaN becomes. At most kMostSources sources. `also`: a second place for the result, which is not read soon, or
/// null. All addresses are multiples of the element size; where all are multiples of 16, accesses are 16 bytes wide.
void reduce_async(void* dst, void* also, std::span<const void* const> srcs, std::size_t count, const Reduction& how,
                  cudaStream_t stream);

/// load_kernel() of all that reduce_async() launches.
void load_reductions() noexcept;

}  // namespace accdp
