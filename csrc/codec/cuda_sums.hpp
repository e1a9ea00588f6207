#pragma once
#include <cstddef>
#include <cstdint>

#include "base/types.hpp"
#include "device/cuda.hpp"

namespace accdp {

// What all of some device memory adds up to, in the order of a stream. Each byte is read once, by as many threads as
// keep a large GPU busy; each of them adds up a part, and parts are joined on the device.

/// Elements of the room for parts of so many bytes.
std::size_t sum_parts(std::size_t bytes);

/// crc32c() of codec/crc32c.hpp, with the seed 0: the same word. parts: sum_parts() words.
void crc32c_async(const std::byte* data, std::size_t bytes, std::uint32_t* parts, std::uint32_t* result,
                  cudaStream_t stream);

/// What a standard deviation is made of.
struct Spread {
  double count, mean;
  double squares;  ///< of the distances from the mean, added up
};
/// Of floats of 16 bits or more, without what is not finite (or, of float64, beyond 1e300). `data` is a multiple of the
/// element's size. parts: sum_parts() of them.
void spread_async(Datatype type, const std::byte* data, std::size_t bytes, Spread* parts, Spread* result,
                  cudaStream_t stream);
/// standard_deviation() of codec/spread.hpp up to rounding: of sums in another order.
double deviation_of(const Spread& spread) noexcept;

}  // namespace accdp
