// Anything may come off the wire: reading a frame and decoding a chunk end in CodecError or in the caller's own memory.
//
//   fuzz_frames [SECONDS]      mutates good frames, with the sanitizers of this build; prints how many it tried
//   clang++ -DACCDP_LIBFUZZER -fsanitize=fuzzer,address,undefined ...      the same under libFuzzer (make fuzz)
//
// nvCOMP's Bitcomp is left out where the checksum is made to fit: its decoder trusts its input, which is why chunks
// have checksums at all. With wrong checksums it is in.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "base/error.hpp"
#include "check.hpp"
#include "codec/codec.hpp"
#include "codec/delta.hpp"
#include "codec/frame.hpp"
#include "codec/nvcomp_api.hpp"
#include "frame_sums.hpp"

using namespace accdp;

namespace {

constexpr std::size_t kRaw = 8192;
constexpr Datatype kTypes[] = {Datatype::kF32, Datatype::kBF16, Datatype::kF16, Datatype::kU16, Datatype::kU32,
                               Datatype::kI64, Datatype::kF64,  Datatype::kU8,  Datatype::kC64};

/// The caller's memory, with guards: a decoder that writes beyond it is seen even where the sanitizer is not.
struct Target {
  std::vector<std::byte> memory = std::vector<std::byte>(kRaw + 128, std::byte{0xa5});
  Bytes bytes(std::size_t size) { return Bytes(memory).subspan(64, size); }
  void check(std::size_t size) const {
    for (std::size_t i = 0; i < memory.size(); ++i)
      if (i < 64 || i >= 64 + size) CHECK(memory[i] == std::byte{0xa5});
  }
};

/// What a call waits for: one chunk, or several of tensors that have a reference.
struct Shape {
  std::vector<ChunkExpectation> chunks;
  std::uint64_t reference;
  FrameExpectation expectation() const { return {1, 7, kRaw, reference, 0, chunks[0].raw_bytes, chunks}; }
};
const Shape kShapes[] = {{{{kRaw, true, false}}, 0},
                         {{{kRaw / 2, true, false}, {kRaw / 4, false, true}, {kRaw / 4, false, true}}, 99}};

/// The whole message as it is. The head's sums seldom fit, so this is mostly about what is read before they are known.
void read_message(const Shape& shape, ConstBytes message) {
  static const std::vector<std::byte> kReference(kRaw, std::byte{0x3c});
  Target target;
  try {
    const FrameReader reader(message, shape.expectation());
    for (Datatype type : {Datatype::kF32, Datatype::kBF16}) {
      std::size_t at = 0;
      for (std::size_t i = 0; i < reader.chunks(); at += shape.chunks[i++].raw_bytes) {
        const Bytes out = target.bytes(kRaw).subspan(at, shape.chunks[i].raw_bytes);
        const bool differs = reader.record(i).flags & ChunkRecord::kDelta;
        reader.decode(i, differs ? delta_type(type) : type, out);
        if (differs) delta_decode(type, out, ConstBytes(kReference).subspan(at, out.size()), out);
      }
    }
  } catch (const CodecError&) {
  }
  target.check(kRaw);
}

/// The bytes as head and records of a frame whose sums are made to fit.
void read_repaired(const Shape& shape, ConstBytes data) {
  std::vector<std::byte> message(data.begin(), data.end());
  if (message.size() < sizeof(FrameHead) + shape.chunks.size() * sizeof(ChunkRecord)) return;
  for (std::size_t i = 0; i < shape.chunks.size(); ++i) {
    const CodecRow* codec = find_codec(record_of(message, i).codec);
    if (codec && codec->trusts_input) return;
  }
  repair_sums(message, shape.chunks.size());
  read_message(shape, message);
}

/// The bytes as one chunk of a codec, which its checksum would have let pass.
void decode_chunk(ConstBytes data) {
  if (data.size() < 3) return;
  const auto rows = codec_rows();
  const CodecRow& codec = *rows[static_cast<std::size_t>(data[0]) % rows.size()];
  const Datatype type = kTypes[static_cast<std::size_t>(data[1]) % std::size(kTypes)];
  const std::size_t size = kRaw - static_cast<std::size_t>(data[2]) * 16;
  if (codec.trusts_input || !codec.takes(type) || !codec.why_not().empty()) return;
  // A copy of its own, so that the sanitizer sees one byte too many.
  const std::vector<std::byte> stored(data.begin() + 3, data.end());
  Target target;
  try {
    codec.decode(type, stored, target.bytes(size));
  } catch (const CodecError&) {
  }
  target.check(size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ConstBytes rest = std::as_bytes(std::span(data + 1, size - 1));
  const Shape& shape = kShapes[data[0] / 2 % 2];
  switch (data[0] % 8) {
    case 0:
    case 2: read_message(shape, rest); break;
    case 1:
    case 3: read_repaired(shape, rest); break;
    default: decode_chunk(rest); break;
  }
  return 0;
}

namespace {

using Input = std::vector<std::uint8_t>;

std::vector<std::byte> good_message(const Shape& shape, const CodecRow& codec, Datatype type, ConstBytes raw) {
  const FrameExpectation expected = shape.expectation();
  std::vector<std::byte> room(frame_room(kRaw, shape.chunks.size()));
  FrameWriter writer(room, shape.chunks.size());
  std::size_t at = 0;
  for (const ChunkExpectation& chunk : shape.chunks) {
    const bool exact = !codec.lossy || chunk.may_be_lossy;
    const Encoding how{chunk.may_be_difference ? delta_type(type) : type, 0.01};
    writer.add(exact ? &codec : nullptr, how, raw.subspan(at, chunk.raw_bytes),
               chunk.may_be_difference ? ChunkRecord::kDelta : std::uint8_t{0});
    at += chunk.raw_bytes;
  }
  FrameHead head;
  head.collective = expected.collective;
  head.sequence = expected.sequence;
  head.stream_bytes = expected.stream_bytes;
  head.reference = expected.reference;
  head.chunk_bytes = expected.chunk_bytes;
  const ConstBytes message = writer.finish(head);
  CHECK(FrameReader(message, expected).chunks() == shape.chunks.size());
  return {message.begin(), message.end()};
}

/// Good inputs of every kind: a chunk and a frame of each codec and datatype, over data that it packs in several ways.
std::vector<Input> seeds() {
  std::vector<Input> all;
  std::mt19937 random(3);
  const auto rows = codec_rows();
  for (std::size_t k = 0; k < rows.size(); ++k)
    for (std::size_t t = 0; t < std::size(kTypes); ++t)
      for (int kind = 0; kind < 3; ++kind) {
        const CodecRow& codec = *rows[k];
        if (!codec.takes(kTypes[t]) || !codec.why_not().empty()) continue;
        std::vector<std::byte> raw(kRaw);
        std::normal_distribution<float> normal(0, 1);
        for (std::size_t at = 0; at + 4 <= kRaw; at += 4) {
          const float value = kind == 0 ? normal(random) : kind == 1 && random() % 50 == 0 ? normal(random) : 0.0F;
          std::memcpy(raw.data() + at, &value, 4);
        }
        std::vector<std::byte> stored(kRaw);
        const std::size_t size = codec.encode({kTypes[t], 0.01}, raw, stored);
        if (size) {
          Input input{4, static_cast<std::uint8_t>(k), static_cast<std::uint8_t>(t), 0};
          for (std::size_t i = 0; i < size; ++i) input.push_back(static_cast<std::uint8_t>(stored[i]));
          all.push_back(input);
        }
        for (std::uint8_t shape : {0, 1}) {
          const std::vector<std::byte> message = good_message(kShapes[shape], codec, kTypes[t], raw);
          for (std::uint8_t way : {0, 1}) {
            Input input{static_cast<std::uint8_t>(2 * shape + way)};
            for (std::byte b : message) input.push_back(static_cast<std::uint8_t>(b));
            all.push_back(input);
          }
        }
      }
  return all;
}

}  // namespace

/// ACCDP_FUZZ_SEEDS names a folder that gets the good inputs, for libFuzzer to begin with.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (const char* folder = std::getenv("ACCDP_TEST_NVCOMP_DIR")) set_nvcomp_directory(folder);
  if (const char* folder = std::getenv("ACCDP_FUZZ_SEEDS")) {
    const std::vector<Input> good = seeds();
    for (std::size_t i = 0; i < good.size(); ++i)
      std::ofstream(std::string(folder) + "/seed" + std::to_string(i), std::ios::binary)
          .write(reinterpret_cast<const char*>(good[i].data()), static_cast<std::streamsize>(good[i].size()));
  }
  return 0;
}

#ifndef ACCDP_LIBFUZZER
namespace {

void mutate(Input& input, std::mt19937& random) {
  for (int n = 1 + random() % 4; n > 0 && !input.empty(); --n) {
    // Mostly near the beginning, where sizes and flags are.
    const std::size_t at = random() % 2 ? random() % input.size() : random() % std::min<std::size_t>(input.size(), 96);
    switch (random() % 6) {
      case 0: input[at] ^= 1 << random() % 8; break;
      case 1: input[at] = static_cast<std::uint8_t>(random()); break;
      case 2: input[at] = random() % 2 ? 0xff : 0; break;
      case 3: input.resize(at + 1); break;
      case 4: input.insert(input.begin() + at, static_cast<std::uint8_t>(random())); break;
      default: input.insert(input.end(), random() % 40, static_cast<std::uint8_t>(random())); break;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  LLVMFuzzerInitialize(nullptr, nullptr);
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const std::vector<Input> good = seeds();
  CHECK(good.size() > 50);
  for (const Input& input : good) LLVMFuzzerTestOneInput(input.data(), input.size());
  std::mt19937 random(std::random_device{}());
  std::uint64_t tried = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; std::chrono::steady_clock::now() < end; ++tried) {
    Input input = good[random() % good.size()];
    mutate(input, random);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%llu inputs from %zu good ones in %.0f s\n", static_cast<unsigned long long>(tried), good.size(),
              seconds);
}
#endif
