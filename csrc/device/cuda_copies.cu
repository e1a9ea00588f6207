#include "device/cuda_copies.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rounding.hpp"

namespace accdp {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kInFlight = 4;  // loads that a thread has begun before it stores the first
constexpr std::size_t kPack = sizeof(uint4);
constexpr std::size_t kTile = kThreads * kInFlight * kPack;

/// Copies in tiles, which are numbered through all of them.
struct Tiles {
  static constexpr int kMost = 64;  // of 28 bytes each: arguments of a kernel are of 4 KiB
  std::byte* to[kMost];
  const std::byte* from[kMost];
  std::size_t bytes[kMost];
  std::uint32_t begin[kMost + 1];
  std::uint64_t is_read_soon;  // a bit for each
  int count;
};

/// What is needed once only is the first to leave the cache for what comes next.
template <bool kIsReadSoon>
__device__ void copy_packs(uint4* to, const uint4* from, unsigned packs) {
  uint4 held[kInFlight];
#pragma unroll
  for (unsigned j = 0; j < kInFlight; ++j) {
    const unsigned i = j * kThreads + threadIdx.x;
    if (i < packs) held[j] = kIsReadSoon ? __ldcs(from + i) : from[i];
  }
#pragma unroll
  for (unsigned j = 0; j < kInFlight; ++j) {
    const unsigned i = j * kThreads + threadIdx.x;
    if (i >= packs) break;
    if (kIsReadSoon)
      to[i] = held[j];
    else
      __stcs(to + i, held[j]);
  }
}

__global__ void copy_tiles(Tiles tiles) {
  for (std::uint32_t tile = blockIdx.x; tile < tiles.begin[tiles.count]; tile += gridDim.x) {
    int c = 0;
    while (tile >= tiles.begin[c + 1]) ++c;
    const std::size_t at = (tile - tiles.begin[c]) * kTile, left = tiles.bytes[c] - at;
    const unsigned bytes = static_cast<unsigned>(left < kTile ? left : kTile), packs = bytes / kPack;
    std::byte* const to = tiles.to[c] + at;
    const std::byte* const from = tiles.from[c] + at;
    if (tiles.is_read_soon >> c & 1)
      copy_packs<true>(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from), packs);
    else
      copy_packs<false>(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from), packs);
    const unsigned i = packs * kPack + threadIdx.x;
    if (i < bytes) to[i] = from[i];
  }
}

void launch(const Tiles& tiles, cudaStream_t stream) {
  constexpr std::uint32_t kMostBlocks = 2048;  // fill any GPU of today; the loop in the kernel does the rest
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(std::min(tiles.begin[tiles.count], kMostBlocks));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  ACCDP_CUDA(cudaLaunchKernelEx(&config, copy_tiles, tiles));
}

bool is_for_kernel(const Copy& copy) {
  return (reinterpret_cast<std::uintptr_t>(copy.to) | reinterpret_cast<std::uintptr_t>(copy.from)) % kPack == 0;
}

}  // namespace

void copy_async(std::span<const Copy> copies, cudaStream_t stream) {
  std::vector<Copy> together;
  for (const Copy& copy : copies)
    if (copy.bytes && copy.to != copy.from) together.push_back(copy);
  const auto rest = std::partition(together.begin(), together.end(), is_for_kernel);
  const auto last = rest - together.begin() > 1 ? rest : together.begin();
  for (auto one = last; one != together.end(); ++one) copy_async(one->to, one->from, one->bytes, stream);
  for (auto first = together.begin(); first != last;) {
    Tiles tiles{};
    for (; first != last && tiles.count < Tiles::kMost; ++first) {
      const int c = tiles.count++;
      tiles.to[c] = static_cast<std::byte*>(first->to);
      tiles.from[c] = static_cast<const std::byte*>(first->from);
      tiles.bytes[c] = first->bytes;
      tiles.begin[c + 1] = tiles.begin[c] + static_cast<std::uint32_t>(ceil_div(first->bytes, kTile));
      tiles.is_read_soon |= std::uint64_t{first->is_read_soon} << c;
    }
    launch(tiles, stream);
  }
}

void load_copies() noexcept { load_kernel(reinterpret_cast<const void*>(copy_tiles)); }

}  // namespace accdp
