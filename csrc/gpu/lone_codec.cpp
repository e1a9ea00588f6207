#include "gpu/lone_codec.hpp"

#include "codec/cuda_codec.hpp"

namespace accdp {
namespace {

std::vector<DeviceChunk> on_device(const std::vector<LoneCodec::Chunk>& given) {
  std::vector<DeviceChunk> chunks;
  for (const LoneCodec::Chunk& chunk : given)
    chunks.push_back({reinterpret_cast<const std::byte*>(chunk.in), reinterpret_cast<std::byte*>(chunk.out),
                      chunk.in_bytes, chunk.out_bytes, chunk.step});
  return chunks;
}
std::uint32_t* word(std::uintptr_t address) { return reinterpret_cast<std::uint32_t*>(address); }
cudaStream_t stream_at(std::uintptr_t handle) { return reinterpret_cast<cudaStream_t>(handle); }

}  // namespace

LoneCodec::LoneCodec(std::size_t chunks, std::size_t chunk_bytes)
    : codec_(std::make_unique<DeviceCodec>(chunks, chunk_bytes)) {}
LoneCodec::~LoneCodec() = default;

std::size_t LoneCodec::room(CodecId codec, Datatype type, std::size_t chunk_bytes) {
  return encoded_room(codec, type, chunk_bytes);
}
std::vector<std::string> LoneCodec::names() { return device_codecs(); }

bool LoneCodec::has(CodecId codec, Datatype type) { return encodes_on_device(codec, type); }

void LoneCodec::encode(CodecId codec, const Encoding& how, const std::vector<Chunk>& chunks, std::uintptr_t sizes,
                       std::uintptr_t stream) {
  codec_->encode_async(codec, how, on_device(chunks), word(sizes), stream_at(stream));
}

void LoneCodec::decode(CodecId codec, Datatype type, const std::vector<Chunk>& chunks, std::uintptr_t damaged,
                       std::uintptr_t stream) {
  codec_->decode_async(codec, type, on_device(chunks), word(damaged), stream_at(stream));
}

}  // namespace accdp
