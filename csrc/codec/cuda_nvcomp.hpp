#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec.hpp"
#include "codec/cuda_chunk.hpp"
#include "device/cuda.hpp"

namespace accdp {

/// ans, bitcomp and lz4.
bool is_of_nvcomp(CodecId codec) noexcept;
/// Whether nvCOMP encodes so on a device: those three, where its library has the functions and the driver is as new as
/// they need. Not lz4 of 8-byte integers, which it would have to take apart first.
bool nvcomp_encodes_on_device(CodecId codec, Datatype type);
/// As encoded_room(), of those three.
std::size_t nvcomp_room(CodecId codec, Datatype type, std::size_t chunk_bytes);

/// ans, bitcomp and lz4 on a device by nvCOMP's batched functions, in the order of a stream. Streams of the latter two
/// are such as the codecs of the host read, though not the bytes that they write. All calls are to be made on one
/// stream.
/// Calls have up to kMostDeviceChunks chunks; memory is taken by those that need it, and kept.
class NvcompCodec {
 public:
  /// As DeviceCodec's; every chunk has the room that the longest one needs. What nvCOMP cannot encode has size 0.
  /// Throws CudaError where nvCOMP cannot begin.
  void encode_async(CodecId codec, const Encoding& how, std::span<const DeviceChunk> chunks, std::uint32_t* sizes,
                    cudaStream_t stream);
  /// As DeviceCodec's; but of bitcomp nvCOMP notices no damage behind the head, and it waits for the stream first.
  void decode_async(CodecId codec, Datatype type, std::span<const DeviceChunk> chunks, std::uint32_t* damaged,
                    cudaStream_t stream);

 private:
  DeviceBuffer tables_, room_, aligned_;
};

}  // namespace accdp
