#pragma once
// Chunks through the codecs of the simulated device, and back.
#include <algorithm>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "codec/cuda_codec.hpp"
#include "codec_data.hpp"
#include "cudasim.hpp"

using namespace accdp;

constexpr std::size_t kChunk = 64 << 10;
constexpr int kBehind = 64;       // bytes behind what may be written
constexpr std::byte kFill{0xa5};  // what the simulation fills memory with

struct Case {
  CodecId codec;
  Encoding how;
};

/// A codec of the device, and memory for the chunks of a call.
class Device {
 public:
  Device() : stream_(make_stream()), codec_(kMostDeviceChunks, kChunk), words_(64 * 4) {}

  std::vector<Buffer> encode(const Case& what, const std::vector<Buffer>& chunks, std::size_t shift) {
    const DeviceBuffer in(chunks.size() * (kChunk + 64));
    std::vector<DeviceBuffer> out;
    std::vector<DeviceChunk> jobs;
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      std::byte* at = in.data() + c * (kChunk + 64) + shift;
      if (!chunks[c].empty()) std::memcpy(at, chunks[c].data(), chunks[c].size());
      // nvCOMP may use of each as much as the longest one needs.
      const bool is_ours = what.codec == CodecId::kFpk || what.codec == CodecId::kQpk;
      const std::size_t room = encoded_room(what.codec, what.how.type, is_ours ? chunks[c].size() : kChunk);
      jobs.push_back({at, out.emplace_back(room + kBehind).data(), static_cast<std::uint32_t>(chunks[c].size()),
                      static_cast<std::uint32_t>(room)});
    }
    auto* sizes = reinterpret_cast<std::uint32_t*>(words_.data());
    codec_.encode_async(what.codec, what.how, jobs, sizes, stream_.get());
    synchronize(stream_.get());
    std::vector<Buffer> streams;
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      streams.emplace_back(jobs[c].out, jobs[c].out + sizes[c]);
      const std::byte* behind = jobs[c].out + jobs[c].out_bytes;
      CHECK(std::count(behind, behind + kBehind, kFill) == kBehind);
    }
    return streams;
  }

  /// Whether the streams were whole; what they are decoded to is in `chunks`, which has the sizes.
  bool decode(const Case& what, const std::vector<Buffer>& streams, std::vector<Buffer>& chunks, std::size_t shift) {
    std::vector<DeviceBuffer> memory;
    memory.reserve(2 * chunks.size());
    std::vector<DeviceChunk> jobs;
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const DeviceBuffer& in = memory.emplace_back(streams[c].size());
      const DeviceBuffer& out = memory.emplace_back(chunks[c].size() + shift + 1);
      if (!streams[c].empty()) std::memcpy(in.data(), streams[c].data(), streams[c].size());
      double step = 0;
      if (streams[c].size() >= sizeof step) std::memcpy(&step, streams[c].data(), sizeof step);
      jobs.push_back({in.data(), out.data() + shift, static_cast<std::uint32_t>(streams[c].size()),
                      static_cast<std::uint32_t>(chunks[c].size()), step});
    }
    auto* damaged = reinterpret_cast<std::uint32_t*>(words_.data());
    *damaged = 0;
    codec_.decode_async(what.codec, what.how.type, jobs, damaged, stream_.get());
    synchronize(stream_.get());
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const std::byte behind = jobs[c].out[chunks[c].size()];
      CHECK(behind == kFill);
      if (!chunks[c].empty()) std::memcpy(chunks[c].data(), jobs[c].out, chunks[c].size());
    }
    return *damaged == 0;
  }

 private:
  Stream stream_;
  DeviceCodec codec_;
  DeviceBuffer words_;
};
