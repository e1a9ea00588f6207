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

/// crc32c() of codec/crc32c.hpp, of each run of kCrcRun bytes: as many words as there are runs.
void crc32c_async(const std::byte* data, std::size_t bytes, std::uint32_t* runs, cudaStream_t stream);

/// Bytes from a device to pinned memory. Many short ones take a launch, not a copy each.
struct Transfer {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};
void fetch_async(std::span<const Transfer> transfers, cudaStream_t stream);

/// Sums over every spread_parts()-th element, less the first element of all: what a standard deviation is made of.
struct SpreadSums {
  double sum, squares, count;
};
std::size_t spread_parts(Datatype type, std::size_t bytes);
/// sums: on the device, spread_parts() of them. Floats of 16 bits or more.
void spread_async(Datatype type, const std::byte* data, std::size_t bytes, SpreadSums* sums, cudaStream_t stream);
/// standard_deviation() of codec/spread.hpp up to rounding: of sums in another order.
double deviation_of(const SpreadSums* sums, std::size_t parts) noexcept;

}  // namespace accdp
