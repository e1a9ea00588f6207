#pragma once
// How kernels over elements are written and started.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "device/cuda.hpp"

namespace accdp::device_codec {

template <class Each>
__device__ void each_index(std::size_t count, Each each) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count; i += stride) each(i);
}

/// All that launch() can start: who calls it for a kernel puts that on the list, so that none is forgotten.
inline std::vector<const void*>& listed_kernels() {
  static std::vector<const void*> all;
  return all;
}
template <auto kKernel>
struct Listed {
  static inline const bool is_listed = [] {
    listed_kernels().push_back(reinterpret_cast<const void*>(kKernel));
    return true;
  }();
};

template <auto kKernel, class... Arguments>
void launch(std::size_t threads, cudaStream_t stream, const Arguments&... arguments) {
  static_cast<void>(Listed<kKernel>::is_listed);
  constexpr unsigned kThreads = 128;
  // Enough blocks to fill any GPU of today several times; the loops in the kernels do the rest.
  constexpr std::size_t kMostBlocks = 4096;
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(std::clamp<std::size_t>((threads + kThreads - 1) / kThreads, 1, kMostBlocks)));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  ACCDP_CUDA(cudaLaunchKernelEx(&config, kKernel, arguments...));
}

}  // namespace accdp::device_codec
