#pragma once
#include <cstddef>
#include <cstdint>

namespace accdp {

/// One chunk of a tensor on a device.
struct DeviceChunk {
  const std::byte* in;
  std::byte* out;
  std::uint32_t in_bytes;
  std::uint32_t out_bytes;  ///< encoding: room, encoded_room() at least; decoding: of the tensor's chunk
  double step = 0;          ///< decoding: what check_head() gave
};

constexpr std::size_t kMostDeviceChunks = 32;  ///< in one call

}  // namespace accdp
