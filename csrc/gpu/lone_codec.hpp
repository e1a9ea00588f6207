#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codec/codec.hpp"

namespace accdp {

class DeviceCodec;

/// codec/cuda_codec.hpp for those who know no CUDA: its codecs by themselves, on the current device, for measurements.
class LoneCodec {
 public:
  /// As DeviceChunk; addresses are of the device.
  struct Chunk {
    std::uintptr_t in, out;
    std::uint32_t in_bytes, out_bytes;
    double step;
  };
  LoneCodec(std::size_t chunks, std::size_t chunk_bytes);
  ~LoneCodec();
  LoneCodec(const LoneCodec&) = delete;

  static std::vector<std::string> names();  ///< of all that work on the current device
  static bool has(CodecId codec, Datatype type);
  static std::size_t room(CodecId codec, Datatype type, std::size_t chunk_bytes);
  /// sizes, damaged: addresses of the device; stream: a cudaStream_t.
  void encode(CodecId codec, const Encoding& how, const std::vector<Chunk>& chunks, std::uintptr_t sizes,
              std::uintptr_t stream);
  void decode(CodecId codec, Datatype type, const std::vector<Chunk>& chunks, std::uintptr_t damaged,
              std::uintptr_t stream);

 private:
  std::unique_ptr<DeviceCodec> codec_;
};

}  // namespace accdp
