#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.hpp"
#include "device/cuda.hpp"

namespace accdp {

// What surrounds the codecs, on device memory and in the order of a stream. Addresses are multiples of the element's
// size.

/// delta_encode() and delta_decode() of codec/delta.hpp: the same bytes. `out` may be one of the inputs.
void delta_encode_async(Datatype type, const std::byte* in, const std::byte* reference, std::byte* out,
                        std::size_t bytes, cudaStream_t stream);
void delta_decode_async(Datatype type, const std::byte* delta, const std::byte* reference, std::byte* out,
                        std::size_t bytes, cudaStream_t stream);

/// residual() of codec/residual.hpp: the same bits. bytes: of `exact` and of `kept`.
void residual_async(Datatype type, const std::byte* exact, const std::byte* kept, double factor, float* out,
                    std::size_t bytes, cudaStream_t stream);

/// Bytes from a device to pinned memory. Many short ones take a launch, not a copy each.
struct Transfer {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};
void fetch_async(std::span<const Transfer> transfers, cudaStream_t stream);

}  // namespace accdp
