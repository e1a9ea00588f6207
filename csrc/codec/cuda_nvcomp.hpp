#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec.hpp"
#include "codec/cuda_chunk.hpp"
#include "device/cuda.hpp"

namespace accdp {

/// A function of nvCOMP's did not begin its work.
struct NvcompError : CudaError {
  using CudaError::CudaError;
};

/// ans, bitcomp and lz4.
bool is_of_nvcomp(CodecId codec) noexcept;
/// Those three; not lz4 of 8-byte integers, which would have to be taken apart first.
bool nvcomp_takes(CodecId codec, Datatype type) noexcept;
/// Of one of those three: whether nvCOMP's library has its functions, and the driver is as new as they need.
bool has_nvcomp_for_device(CodecId codec);
/// Whether nvCOMP encodes and decodes so on the current device: what it takes and has, and what in a first trial of
/// each datatype came back as it was. That loads nvCOMP's kernels, too, and waits for them; standard error is told what
/// failed. Throws where the wait is given up (WatchedWaits).
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
  /// Throws NvcompError where nvCOMP cannot begin.
  void encode_async(CodecId codec, const Encoding& how, std::span<const DeviceChunk> chunks, std::uint32_t* sizes,
                    cudaStream_t stream);
  /// As DeviceCodec's; but of bitcomp nvCOMP notices no damage behind the head, and it waits for the stream first.
  void decode_async(CodecId codec, Datatype type, std::span<const DeviceChunk> chunks, std::uint32_t* damaged,
                    cudaStream_t stream);

 private:
  DeviceBuffer tables_, room_, aligned_;
};

}  // namespace accdp
