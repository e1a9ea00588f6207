#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec.hpp"
#include "device/cuda.hpp"

namespace accdp {

/// One chunk of a tensor on a device.
struct DeviceChunk {
  const std::byte* in;
  std::byte* out;
  std::uint32_t in_bytes;
  std::uint32_t out_bytes;  ///< encoding: room, encoded_room() at least; decoding: of the tensor's chunk
  double step = 0;          ///< decoding qpk: the number that its stream begins with
};

constexpr std::size_t kMostDeviceChunks = 32;  ///< in one call

/// Whether codec and datatype have kernels: fpk and qpk, for all datatypes that they take.
bool encodes_on_device(CodecId codec, Datatype type) noexcept;
/// DeviceChunk::step of a stream; throws CodecError where no encoder writes such a beginning.
double step_of(CodecId codec, Datatype type, ConstBytes stored);
/// What encoding a chunk may write before it is known that it did not become smaller.
std::size_t encoded_room(std::size_t chunk_bytes) noexcept;

/// fpk and qpk on a device: the bytes of fpk_encode() and qpk_encode(), and back, in the order of a stream. Its
/// intermediate results live in memory of its own, so all calls are to be made on one stream. Tensors begin at
/// multiples of their elements' size, which are read and written 16 bytes at a time where they begin at multiples
/// of that; encoded chunks begin at multiples of 16.
class DeviceCodec {
 public:
  /// For calls with up to so many chunks of up to so many bytes of a tensor. Takes memory as large as all of them.
  DeviceCodec(std::size_t chunks, std::size_t chunk_bytes);

  /// sizes: on the device, of each chunk's encoded bytes; 0: it did not become smaller. Throws UsageError where the
  /// bound is not finite and > 0.
  void encode_async(CodecId codec, const Encoding& how, std::span<const DeviceChunk> chunks, std::uint32_t* sizes,
                    cudaStream_t stream);
  /// damaged: on the device, becomes 1 if a chunk is no stream of this codec; the tensor is undefined then, and
  /// nothing else is written.
  void decode_async(CodecId codec, Datatype type, std::span<const DeviceChunk> chunks, std::uint32_t* damaged,
                    cudaStream_t stream);

 private:
  void check(std::span<const DeviceChunk> chunks, bool encodes) const;

  std::size_t chunks_, chunk_bytes_;
  DeviceBuffer scratch_;
};

}  // namespace accdp
