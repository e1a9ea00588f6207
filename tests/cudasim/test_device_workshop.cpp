// A workshop's memory for codecs: as much as its largest call had, not its most chunks times its longest.
#include <cstring>

#include "device_chunks.hpp"
#include "gpu/codec_workshop.hpp"

namespace {

constexpr std::size_t kLong = 4 << 20, kShort = 4 << 10;

/// Encodes a tensor in chunks of so many bytes and decodes them again.
void there_and_back(CodecWorkshop& shop, const Stream& stream, std::size_t bytes, std::size_t chunk_bytes) {
  const Buffer data = make(Kind::kBell, Datatype::kF32, bytes / sizeof(float), 3);
  const DeviceBuffer memory(bytes), back(bytes);
  std::memcpy(memory.data(), data.data(), bytes);
  const auto place = [&](const DeviceBuffer& in, std::size_t at) {
    return CodecWorkshop::Place{{{in.data() + at, nullptr, chunk_bytes}}, Datatype::kF32};
  };
  const CodecRow* fpk = &codec_named("fpk");
  shop.begin_after(stream.get());
  std::vector<CodecWorkshop::Job> jobs;
  for (std::size_t at = 0; at < bytes; at += chunk_bytes) jobs.push_back({place(memory, at), fpk, {Datatype::kF32}});
  const std::size_t beginning = shop.begin_encode(jobs);
  const std::vector<ConstBytes> encoded = shop.encoded(beginning);
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    CHECK(!encoded[i].empty());
    shop.decode(fpk, Datatype::kF32, encoded[i], place(back, i * chunk_bytes));
  }
  shop.end_encode(beginning);
  shop.finish();
  CHECK(std::memcmp(back.data(), data.data(), bytes) == 0);
}

}  // namespace

int main() {
  const Stream stream = make_stream();
  CodecWorkshop shop;
  cudasim::set_largest_allocation(2 * kLong);
  CHECK_THROWS(DeviceCodec(kMostDeviceChunks, kLong), CudaError, "out of memory");  // the most times the longest
  there_and_back(shop, stream, kMostDeviceChunks * kShort, kShort);
  there_and_back(shop, stream, kLong, kLong);
  there_and_back(shop, stream, kMostDeviceChunks * kShort, kShort);
}
