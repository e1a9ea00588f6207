// lz4, bitcomp and ans on the device, by functions that stand in for nvCOMP's batched ones: of the first two the codecs
// of the host read what the device wrote, and the other way round.
#include <cstring>
#include <string>

#include "batched_nvcomp.hpp"
#include "codec/ans.hpp"
#include "device_chunks.hpp"

constexpr Datatype kTypes[] = {Datatype::kF32, Datatype::kBF16, Datatype::kF16, Datatype::kF64,    Datatype::kI32,
                               Datatype::kI64, Datatype::kU8,   Datatype::kC64, Datatype::kF8E4M3, Datatype::kBytes};

std::vector<Buffer> chunks_of() {
  std::vector<Buffer> chunks;
  // Numbers of the sparse kind in chunks that end anywhere, and what cannot become smaller. Their rooms lie one
  // behind the other, so that what writes over its own spoils the next.
  for (std::size_t bytes : {kChunk, std::size_t{40'000}, std::size_t{1040}, std::size_t{16}, std::size_t{0}})
    chunks.push_back(make(Kind::kSparse, Datatype::kF32, bytes / 4, bytes + 1));
  chunks.push_back(Buffer(kChunk, std::byte{0}));
  chunks.push_back(make(Kind::kBits, Datatype::kF32, 2000, 8));
  return chunks;
}

/// What nvCOMP was told that the elements are, behind the simulation's magic number.
nvcomp::AnsType told_to_ans(const Buffer& stream) {
  nvcomp::AnsType told;
  std::memcpy(&told, stream.data() + 8, sizeof told);
  return told;
}

/// What the device wrote the device reads, and the host where it has the codec; and the other way round.
void both_ways(Device& device, const CodecRow& codec, Datatype type) {
  const Case what{codec.id, {type}};
  const std::vector<Buffer> chunks = chunks_of();
  const std::size_t width = is_complex(type) ? element_bytes(type) / 2 : element_bytes(type);
  for (std::size_t shift : {std::size_t{0}, std::size_t{1}, width}) {
    const std::vector<Buffer> streams = device.encode(what, chunks, shift);
    CHECK(!streams[0].empty() && !streams[5].empty());
    CHECK(streams[4].empty() && streams[6].empty());
    std::vector<Buffer> whole, wanted, restored;
    const auto is_read = [&](const Buffer& stream, const Buffer& chunk) {
      CHECK(check_head(codec.id, type, stream, chunk.size()) == 0);
      whole.push_back(stream);
      wanted.push_back(chunk);
      restored.emplace_back(chunk.size());
    };
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      if (streams[c].empty()) continue;
      CHECK(streams[c].size() < chunks[c].size());
      is_read(streams[c], chunks[c]);
      Buffer back(chunks[c].size()), of_host(chunks[c].size());
      of_host.resize(codec.encode({type}, chunks[c], of_host));
      if (codec.stand_in) {
        CHECK(of_host.empty() && told_to_ans(streams[c]) == ans_type(type));
        CHECK_THROWS(codec.decode(type, streams[c], back), CodecError, "only a GPU");
        continue;
      }
      codec.decode(type, streams[c], back);
      CHECK(back == chunks[c] && !of_host.empty());
      is_read(of_host, chunks[c]);
    }
    CHECK(device.decode(what, whole, restored, shift));
    CHECK(restored == wanted);
  }
}

void damage(Device& device) {
  const Buffer data = make(Kind::kSparse, Datatype::kF32, 4000, 5);
  const Case lz4{CodecId::kLz4, {Datatype::kF32}}, bitcomp{CodecId::kBitcomp, {Datatype::kF32}};
  const Buffer stream = device.encode(lz4, {data}, 0)[0];
  std::vector<Buffer> out{Buffer(data.size())};
  CHECK(device.decode(lz4, {stream}, out, 0));
  CHECK(!device.decode(lz4, {Buffer(stream.begin(), stream.end() - 7)}, out, 0));
  out[0].resize(data.size() - 4);  // a stream for another size
  CHECK(!device.decode(lz4, {stream}, out, 0));
  CHECK(!device.decode(lz4, {Buffer()}, out, 0));

  const Case ans{CodecId::kAns, {Datatype::kF32}};
  out[0].resize(data.size());
  const Buffer of_ans = device.encode(ans, {data}, 0)[0];
  CHECK(device.decode(ans, {of_ans}, out, 0));
  CHECK(!device.decode(ans, {Buffer(of_ans.begin(), of_ans.end() - 7)}, out, 0));
  CHECK(!device.decode(ans, {stream}, out, 0));
  out[0].resize(data.size() - 4);
  CHECK(!device.decode(ans, {of_ans}, out, 0));

  // Of Bitcomp the head is looked at in the host, before the device sees it.
  Buffer head = device.encode(bitcomp, {data}, 0)[0];
  const auto check = [&](Datatype type, std::size_t bytes) { check_head(CodecId::kBitcomp, type, head, bytes); };
  check(Datatype::kF32, data.size());
  CHECK_THROWS(check(Datatype::kF32, data.size() - 4), CodecError, "Bitcomp stream is for 16000 bytes");
  CHECK_THROWS(check(Datatype::kBF16, data.size()), CodecError, "expected 16000 bytes of word type 2");
  head.resize(head.size() - 1);
  CHECK_THROWS(check(Datatype::kF32, data.size()), CodecError, "Bitcomp");
}

void failures(Device& device) {
  const std::vector<Buffer> data{make(Kind::kSparse, Datatype::kF32, 4000, 5)};
  for (const auto& [codec, name] :
       {std::pair{CodecId::kLz4, "LZ4"}, std::pair{CodecId::kBitcomp, "Bitcomp"}, std::pair{CodecId::kAns, "ANS"}}) {
    const Case what{codec, {Datatype::kF32}};
    std::vector<Buffer> streams = device.encode(what, data, 0), out{Buffer(data[0].size())};
    const std::string compress = std::string("nvcompBatched") + name + "CompressAsync";
    cudasim::fail(compress.c_str(), cudaErrorLaunchFailure);
    CHECK_THROWS(device.encode(what, data, 0), CudaError, compress + " failed with status 1000");
    const std::string decompress = std::string("nvcompBatched") + name + "DecompressAsync";
    cudasim::fail(decompress.c_str(), cudaErrorLaunchFailure);
    CHECK_THROWS(device.decode(what, streams, out, 0), CudaError, decompress + " failed with status 1000");
    CHECK(device.decode(what, streams, out, 0));  // and it goes on
    CHECK(out == data);
  }
}

/// What fails when it is first asked for is left to the host from then on, that datatype of it and nothing else; but
/// not for want of memory.
void trials() {
  const auto works = [](CodecId codec, Datatype type) { return encodes_on_device(codec, type); };
  for (const auto& [codec, name] :
       {std::pair{CodecId::kLz4, "LZ4"}, std::pair{CodecId::kBitcomp, "Bitcomp"}, std::pair{CodecId::kAns, "ANS"}}) {
    int nth = 0;
    for (const char* step : {"CompressAsync", "DecompressAsync"}) {
      const Datatype type = nth++ ? Datatype::kU16 : Datatype::kI16;
      cudasim::fail((std::string("nvcompBatched") + name + step).c_str(), cudaErrorLaunchFailure);
      CHECK(!works(codec, type) && !works(codec, type));
    }
    cudasim::fail("cudaMemcpyAsync", cudaErrorMemoryAllocation);
    CHECK_THROWS(works(codec, Datatype::kU32), CudaError, "cudaErrorMemoryAllocation");
    CHECK(works(codec, Datatype::kU32) && works(codec, Datatype::kF32));
  }
  ::setenv("CUDASIM_LZ4_SPOILS", "", 1);
  CHECK(!works(CodecId::kLz4, Datatype::kF8E5M2));
  ::unsetenv("CUDASIM_LZ4_SPOILS");
  CHECK(!works(CodecId::kLz4, Datatype::kF8E5M2) && works(CodecId::kLz4, Datatype::kBool));
}

int main() {
  const bool is_there = has_batched_nvcomp();
  Device device;
  for (const char* name : {"lz4", "bitcomp", "ans"}) {
    const CodecRow& codec = codec_named(name);
    for (Datatype type : kTypes) {
      const bool is_split = codec.id == CodecId::kLz4 && type == Datatype::kI64;
      CHECK(encodes_on_device(codec.id, type) == (is_there && !is_split));
      if (is_there && !is_split) both_ways(device, codec, type);
    }
  }
  const std::vector<std::string> all{"fpk", "bitcomp", "ans", "lz4", "qpk"}, own{"fpk", "qpk"};
  CHECK(device_codecs() == (is_there ? all : own));
  for (const char* name : {"zstd", "bitcomp_lossy"}) CHECK(!encodes_on_device(codec_named(name).id, Datatype::kF32));
  if (!is_there) return 0;
  damage(device);
  failures(device);
  trials();
}
