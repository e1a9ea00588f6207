// The kernels of fpk and qpk against the codecs of the host: the same bytes, whatever the data, and back.
#include <cstring>
#include <limits>
#include <vector>

#include "codec/fpk.hpp"
#include "codec/qpk.hpp"
#include "device_chunks.hpp"

Buffer on_host(const Case& what, const Buffer& chunk) {
  Buffer out(chunk.size());
  const std::size_t bytes = what.codec == CodecId::kFpk ? fpk_encode(what.how.type, chunk, out)
                                                        : qpk_encode(what.how.type, what.how.bound, chunk, out);
  out.resize(bytes);
  return out;
}

Buffer back_on_host(const Case& what, const Buffer& stream, std::size_t bytes) {
  Buffer out(bytes);
  what.codec == CodecId::kFpk ? fpk_decode(what.how.type, stream, out) : qpk_decode(what.how.type, stream, out);
  return out;
}

/// Every kind of bits that a float can be made of, in runs of all lengths.
Buffer adversarial(Datatype type, std::size_t count, std::uint64_t seed) {
  Random random{seed};
  const std::size_t width = element_bytes(type);
  const std::uint32_t f32[] = {0,          0x80000000, 1,          0x807fffff, 0x00800000, 0x7f800000, 0xff800000,
                               0x7f800001, 0xffc12345, 0x7fffffff, 0x7f7fffff, 0xff7fffff, 0x3f800000, 0xffffffff};
  const std::uint16_t bf16[] = {0,      0x8000, 1,      0x807f, 0x0080, 0x7f80, 0xff80,
                                0x7f81, 0xffc1, 0x7fff, 0x7f7f, 0xff7f, 0x3f80, 0xffff};
  const std::uint16_t f16[] = {0,      0x8000, 1,      0x83ff, 0x0400, 0x7c00, 0xfc00,
                               0x7c01, 0xfe01, 0x7fff, 0x7bff, 0xfbff, 0x3c00, 0xffff};
  Buffer data = make(random.below(2) ? Kind::kBell : Kind::kBits, type, count, seed);
  for (std::size_t i = 0; i < count;) {
    const std::uint32_t which = random.below(14);
    const void* value = width == 4                ? static_cast<const void*>(f32 + which)
                        : type == Datatype::kBF16 ? static_cast<const void*>(bf16 + which)
                                                  : static_cast<const void*>(f16 + which);
    for (std::uint32_t run = random.below(random.below(4) ? 3 : 700); run > 0 && i < count; --run, ++i)
      std::memcpy(data.data() + i * width, value, width);
    i += random.below(900);
  }
  return data;
}

int main() {
  Device device;
  std::vector<Case> cases;
  for (Datatype type : {Datatype::kF32, Datatype::kBF16, Datatype::kF16, Datatype::kU16, Datatype::kU32})
    cases.push_back({CodecId::kFpk, {type}});
  for (Datatype type : {Datatype::kF32, Datatype::kBF16, Datatype::kF16})
    for (double bound : {1e-30, 1e-4, 0.01, 0.7, 1e5, 1e300}) cases.push_back({CodecId::kQpk, {type, bound}});
  std::size_t encoded = 0;
  for (const Case& what : cases) {
    const Datatype type = what.how.type;
    const std::size_t width = element_bytes(type);
    std::vector<Buffer> chunks;
    for (Kind kind : kKinds) chunks.push_back(make(kind, type, kChunk / width, 7));
    std::uint64_t seed = 1;
    for (std::size_t count : {0, 1, 3, 31, 255, 256, 257, 511, 512, 513, 1024, 5000, 16383, 16384})
      chunks.push_back(adversarial(type, count, ++seed));
    for (Kind kind : {Kind::kSparse, Kind::kRareLarge}) chunks.push_back(make(kind, type, 12345, 3));
    for (std::size_t shift : {std::size_t{0}, width}) {  // a multiple of 16, and none
      const std::vector<Buffer> streams = device.encode(what, chunks, shift);
      std::vector<Buffer> wanted, whole, restored;
      for (std::size_t c = 0; c < chunks.size(); ++c) {
        CHECK(streams[c] == on_host(what, chunks[c]));
        if (streams[c].empty()) continue;
        ++encoded;
        whole.push_back(streams[c]);
        wanted.push_back(back_on_host(what, streams[c], chunks[c].size()));
        restored.emplace_back(chunks[c].size());
      }
      CHECK(device.decode(what, whole, restored, shift));
      CHECK(restored == wanted);
    }

    // What is no stream is found out where the host finds it out, and nothing else is touched.
    const Buffer data = make(Kind::kWide, type, 5000, 5);
    const Buffer stream = on_host(what, data);
    if (stream.empty()) continue;
    Random random{11};
    for (int round = 0; round < 60; ++round) {
      std::vector<Buffer> bad{damaged(stream, random)}, out{Buffer(data.size())};
      if (what.codec == CodecId::kQpk && (bad[0].size() < 8 || std::memcmp(bad[0].data(), stream.data(), 8) != 0))
        continue;  // the head is looked at in the host
      bool good = true;
      Buffer expected;
      try {
        expected = back_on_host(what, bad[0], data.size());
      } catch (const CodecError&) {
        good = false;
      }
      const bool found_good = device.decode(what, bad, out, 0);
      CHECK(found_good == good);
      if (good) CHECK(out[0] == expected);
    }
  }
  CHECK(encoded > 300);

  const Case exact{CodecId::kFpk, {Datatype::kF32}};
  const auto launches = [&](std::size_t elements) {
    const int before = cudasim::calls("cudaLaunchKernelExC");
    std::vector<Buffer> out{Buffer(4 * elements)};
    CHECK(device.decode(exact, device.encode(exact, {make(Kind::kBell, Datatype::kF32, elements, 1)}, 0), out, 0));
    return cudasim::calls("cudaLaunchKernelExC") - before;
  };
  CHECK(launches(kChunk / 4 - 4096 + 5) == launches(kChunk / 4 - 4096) + 2);  // what fills no block

  const std::vector<DeviceChunk> many(kMostDeviceChunks + 1);
  DeviceCodec codec(kMostDeviceChunks, kChunk);
  CHECK_THROWS(codec.encode_async(CodecId::kFpk, {Datatype::kF32}, many, nullptr, nullptr), UsageError,
               "33 chunks: expected up to 32");
  CHECK_THROWS(codec.encode_async(CodecId::kFpk, {Datatype::kF64}, {many.data(), 1}, nullptr, nullptr), UsageError,
               "encoding float64 on a device");
  CHECK_THROWS(codec.encode_async(CodecId::kQpk, {Datatype::kF32, 0}, {many.data(), 1}, nullptr, nullptr), UsageError,
               "must be finite and > 0");
  const DeviceChunk long_one{nullptr, nullptr, 2 * kChunk, 0};
  CHECK(codec.takes(1, 2 * kChunk) && codec.takes(kMostDeviceChunks, kChunk) &&
        !codec.takes(kMostDeviceChunks, 2 * kChunk));
  CHECK_THROWS(DeviceCodec(1, 1000).encode_async(CodecId::kFpk, {Datatype::kF32}, {&long_one, 1}, nullptr, nullptr),
               UsageError, "1 chunks of up to 131072 bytes: expected a codec made for as many");
  cudasim::fail("cudaLaunchKernelExC", cudaErrorLaunchFailure);
  CHECK_THROWS(codec.encode_async(CodecId::kFpk, {Datatype::kF32}, {many.data(), 1}, nullptr, nullptr), CudaError,
               "cudaErrorLaunchFailure, codec/cuda_launch.hpp:");
  cudasim::set_largest_allocation(1000);
  CHECK_THROWS(DeviceCodec(1, kChunk), CudaError, "out of memory");
}
