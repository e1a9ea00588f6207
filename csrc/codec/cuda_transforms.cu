// Elementwise kernels around the codecs. Differences to a reference are made by the functions that the host loops of
// codec/delta.cpp use; residuals as in codec/residual.cpp. Compiled without fused multiply-add, as those are.
#include <cstdint>
#include <type_traits>

#include "codec/cuda_floats.hpp"
#include "codec/cuda_launch.hpp"
#include "codec/cuda_transforms.hpp"
#include "codec/delta_element.hpp"

namespace accdp {
namespace {

using device_codec::each_index;
using device_codec::kWide;
using device_codec::Lanes;
using device_codec::launch;

bool is_wide(const void* a, const void* b, const void* c) {
  return (reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b) |
          reinterpret_cast<std::uintptr_t>(c)) %
             kWide ==
         0;
}

template <bool kEncodes, bool kFloat, class T>
__global__ void delta(const T* in, const T* reference, T* out, std::size_t packs, std::size_t count) {
  constexpr std::size_t kLanes = kWide / sizeof(T);
  using Word = std::conditional_t<sizeof(T) < 4, std::uint32_t, T>;
  const auto one = [](T a, T b) { return kEncodes ? delta_of<kFloat, Word>(a, b) : value_of<kFloat, Word>(a, b); };
  each_index(packs, [&](std::size_t i) {
    Lanes<T> pack = reinterpret_cast<const Lanes<T>*>(in)[i];
    const Lanes<T> other = reinterpret_cast<const Lanes<T>*>(reference)[i];
#pragma unroll
    for (std::size_t l = 0; l < kLanes; ++l) pack.lane[l] = one(pack.lane[l], other.lane[l]);
    reinterpret_cast<Lanes<T>*>(out)[i] = pack;
  });
  const std::size_t first = packs * kLanes;
  each_index(count - first, [&](std::size_t i) { out[first + i] = one(in[first + i], reference[first + i]); });
}

template <bool kEncodes>
void delta_async(Datatype type, const std::byte* in, const std::byte* reference, std::byte* out, std::size_t bytes,
                 cudaStream_t stream) {
  delta_dispatch(type, [&](auto word, auto is_float) {
    using T = decltype(word);
    const std::size_t count = bytes / sizeof(T), packs = is_wide(in, reference, out) ? bytes / kWide : 0;
    if (count == 0) return;
    launch<delta<kEncodes, decltype(is_float)::value, T>>(packs ? packs : count, stream, reinterpret_cast<const T*>(in),
                                                          reinterpret_cast<const T*>(reference),
                                                          reinterpret_cast<T*>(out), packs, count);
  });
}

template <class Float>
__global__ void subtract(const typename Float::T* exact, const typename Float::T* kept, typename Float::Wide factor,
                         float* out, std::size_t count) {
  constexpr float kMost = 0x1.fffffep127F;
  each_index(count, [&](std::size_t i) {
    const auto a = Float::load(exact[i]), b = Float::load(kept[i]), left = (a - b) * factor;
    const bool are_finite = a - a == 0 && b - b == 0;
    out[i] = !are_finite ? 0 : left > kMost ? kMost : left < -kMost ? -kMost : static_cast<float>(left);
  });
}

constexpr std::size_t kShort = 64;  // bytes that one thread copies
struct ShortTransfers {
  static constexpr std::uint32_t kMost = 128;  // arguments of a kernel are of 4 KiB
  Transfer each[kMost];
  std::uint32_t count = 0;
};
__global__ void fetch_short(ShortTransfers transfers) {
  each_index(transfers.count, [&](std::size_t i) {
    const Transfer& one = transfers.each[i];
    for (std::size_t at = 0; at < one.bytes; ++at) one.to[at] = one.from[at];
  });
}

}  // namespace

void delta_encode_async(Datatype type, const std::byte* in, const std::byte* reference, std::byte* out,
                        std::size_t bytes, cudaStream_t stream) {
  delta_async<true>(type, in, reference, out, bytes, stream);
}

void delta_decode_async(Datatype type, const std::byte* delta, const std::byte* reference, std::byte* out,
                        std::size_t bytes, cudaStream_t stream) {
  delta_async<false>(type, delta, reference, out, bytes, stream);
}

void residual_async(Datatype type, const std::byte* exact, const std::byte* kept, double factor, float* out,
                    std::size_t bytes, cudaStream_t stream) {
  device_codec::with_float(type, "a residual", [&](auto kind) {
    using Float = decltype(kind);
    const std::size_t count = bytes / sizeof(typename Float::T);
    if (count > 0)
      launch<subtract<Float>>(count, stream, reinterpret_cast<const typename Float::T*>(exact),
                              reinterpret_cast<const typename Float::T*>(kept),
                              static_cast<typename Float::Wide>(factor), out, count);
  });
}

void fetch_async(std::span<const Transfer> transfers, cudaStream_t stream) {
  ShortTransfers together;
  const auto flush = [&] {
    if (together.count > 0) launch<fetch_short>(together.count, stream, together);
    together.count = 0;
  };
  for (const Transfer& one : transfers) {
    if (one.bytes > kShort) {
      copy_async(one.to, one.from, one.bytes, stream);
      continue;
    }
    together.each[together.count++] = one;
    if (together.count == ShortTransfers::kMost) flush();
  }
  flush();
}

}  // namespace accdp
