#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codec/codec.hpp"
#include "codec/cuda_chunk.hpp"
#include "codec/cuda_nvcomp.hpp"
#include "device/cuda.hpp"

namespace accdp {

/// Whether codec and datatype can be encoded and decoded on the current device: fpk and qpk for all datatypes that they
/// take; ans, lz4 and bitcomp where nvCOMP is seen to work (cuda_nvcomp.hpp).
bool encodes_on_device(CodecId codec, Datatype type);
/// Names of the codecs that encode and decode on the current device, of some datatype at least.
std::vector<std::string> device_codecs();
/// Looks at what the device cannot look at itself before a stream is decoded there. Returns DeviceChunk::step; throws
/// CodecError where no encoder writes such a beginning.
double check_head(CodecId codec, Datatype type, ConstBytes stored, std::size_t chunk_bytes);
/// What encoding a chunk may write before it is known that it did not become smaller.
std::size_t encoded_room(CodecId codec, Datatype type, std::size_t chunk_bytes);

/// load_kernel() of all kernels of the codecs and of what surrounds them (cuda_transforms.hpp).
void load_codecs() noexcept;

/// The codecs on a device, in the order of a stream: fpk and qpk, the bytes of fpk_encode() and qpk_encode(), and back;
/// ans, lz4 and bitcomp by nvCOMP. Its intermediate results live in memory of its own, so all calls are to be made on
/// one stream. Tensors begin at multiples of their elements' size, which are read and written 16 bytes at a time where
/// they begin at multiples of that; encoded chunks begin at multiples of 16.
class DeviceCodec {
 public:
  /// For calls with so many chunks of up to so many bytes of a tensor, and others that need no more memory. It takes as
  /// much as all of them have.
  DeviceCodec(std::size_t chunks, std::size_t chunk_bytes);
  /// Whether its memory is enough for such a call.
  bool takes(std::size_t chunks, std::size_t chunk_bytes) const;

  /// sizes: on the device, of each chunk's encoded bytes; 0: it did not become smaller. Throws UsageError where the
  /// bound is not finite and > 0.
  void encode_async(CodecId codec, const Encoding& how, std::span<const DeviceChunk> chunks, std::uint32_t* sizes,
                    cudaStream_t stream);
  /// damaged: on the device, becomes 1 if a chunk is no stream of this codec; the tensor is undefined then, and
  /// nothing else is written.
  void decode_async(CodecId codec, Datatype type, std::span<const DeviceChunk> chunks, std::uint32_t* damaged,
                    cudaStream_t stream);

 private:
  /// Bytes of the longest chunk's tensor; throws UsageError where a call is for a codec that is larger.
  std::size_t longest(std::span<const DeviceChunk> chunks, bool encodes) const;

  DeviceBuffer scratch_;
  NvcompCodec nvcomp_;
};

}  // namespace accdp
