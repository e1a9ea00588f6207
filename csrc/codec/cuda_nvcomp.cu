// nvCOMP's batched functions take the chunks' addresses and sizes from tables in device memory, and leave sizes and
// statuses there. Kernels write the tables, from arguments that need no memory of the host to last, and read them.
#include "codec/cuda_nvcomp.hpp"

#include <string>
#include <vector>

#include "base/error.hpp"
#include "codec/ans.hpp"
#include "codec/bitcomp.hpp"
#include "codec/cuda_launch.hpp"
#include "codec/lz4.hpp"
#include "codec/nvcomp_api.hpp"
#include "device/cuda_report.hpp"

namespace accdp {
namespace {

using device_codec::each_index;
using device_codec::launch;

constexpr int kNotDone = -1;  // no status of nvCOMP's
constexpr std::size_t kSlotAlignment = 256;

/// Of the tensors' memory, as nvCOMP 6 says for our options; encoded chunks are aligned as any of them want. A kernel
/// that meets less ends its process's work on the GPU.
std::size_t alignment_to_encode(CodecId codec, Datatype type) {
  if (codec == CodecId::kBitcomp)
    return std::size_t{1} << static_cast<int>(bitcomp_word(type)) / 2;  // the word's bytes
  return codec == CodecId::kAns ? 16 : 1;
}
std::size_t alignment_to_decode(CodecId codec) { return codec == CodecId::kAns ? 16 : codec == CodecId::kLz4 ? 1 : 8; }

struct Tables {
  const void* in[kMostDeviceChunks];
  void* out[kMostDeviceChunks];
  std::size_t in_bytes[kMostDeviceChunks], most_bytes[kMostDeviceChunks], out_bytes[kMostDeviceChunks];
  int statuses[kMostDeviceChunks];
};

/// The chunks of a call, as kernels get them: those that are not empty first.
struct Chunks {
  DeviceChunk chunk[kMostDeviceChunks];
  std::uint32_t place[kMostDeviceChunks];  // in the call
  std::uint32_t count = 0, all = 0;

  explicit Chunks(std::span<const DeviceChunk> given) {
    for (const bool is_empty : {false, true})
      for (std::uint32_t i = 0; i < given.size(); ++i) {
        if ((given[i].in_bytes == 0) != is_empty) continue;
        chunk[all] = given[i];
        place[all++] = i;
        count += !is_empty;
      }
  }
};

__global__ void set_tables(Chunks chunks, Tables* tables) {
  each_index(chunks.count, [&](std::size_t i) {
    tables->in[i] = chunks.chunk[i].in;
    tables->in_bytes[i] = chunks.chunk[i].in_bytes;
    tables->out[i] = chunks.chunk[i].out;
    tables->most_bytes[i] = chunks.chunk[i].out_bytes;
    tables->out_bytes[i] = 0;
    tables->statuses[i] = kNotDone;
  });
}

__global__ void take_sizes(Chunks chunks, const Tables* tables, std::uint32_t* sizes) {
  each_index(chunks.all, [&](std::size_t i) {
    const bool is_smaller =
        i < chunks.count && tables->statuses[i] == 0 && tables->out_bytes[i] < chunks.chunk[i].in_bytes;
    sizes[chunks.place[i]] = is_smaller ? static_cast<std::uint32_t>(tables->out_bytes[i]) : 0;
  });
}

__global__ void note_damage(Chunks chunks, const Tables* tables, std::uint32_t* damaged) {
  each_index(chunks.all, [&](std::size_t i) {
    const bool is_whole =
        i < chunks.count && tables->statuses[i] == 0 && tables->out_bytes[i] == chunks.chunk[i].out_bytes;
    if (!is_whole) *damaged = 1;
  });
}

/// The batched functions number signed words before unsigned ones, the native ones the other way round.
nvcomp::BatchedWord batched_word(Datatype type) {
  return static_cast<nvcomp::BatchedWord>(static_cast<int>(bitcomp_word(type)) ^ 1);
}
static_assert((static_cast<int>(nvcomp::Word::kU32) ^ 1) == static_cast<int>(nvcomp::BatchedWord::kU32));
static_assert((static_cast<int>(nvcomp::Word::kI64) ^ 1) == static_cast<int>(nvcomp::BatchedWord::kI64));

/// Calls `with` with nvCOMP's name of a codec, its functions, and the options for both ways.
template <class With>
auto with_codec(CodecId codec, Datatype type, With&& with) {
  if (codec == CodecId::kLz4)
    return with("LZ4", nvcomp::batched_lz4(), nvcomp::Lz4Compression{}, nvcomp::Lz4Decompression{});
  if (codec == CodecId::kAns)
    return with("ANS", nvcomp::batched_ans(), nvcomp::AnsCompression{.type = ans_type(type)},
                nvcomp::AnsDecompression{});
  nvcomp::BitcompCompression how;
  how.word = batched_word(type);
  return with("Bitcomp", nvcomp::batched_bitcomp(), how, nvcomp::BitcompDecompression{});
}

void require_success(int status, const char* codec, const char* call) {
  if (status != 0)
    throw NvcompError(std::string("nvcompBatched") + codec + call + " failed with status " + std::to_string(status));
}

std::size_t longest(std::span<const DeviceChunk> chunks, std::uint32_t DeviceChunk::* bytes) {
  std::size_t most = 0;
  for (const DeviceChunk& chunk : chunks) most = std::max<std::size_t>(most, chunk.*bytes);
  return most;
}

std::size_t in_slots(std::size_t bytes) { return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment; }

/// What must not be read or written where it is gets another place, in `room`; moved(chunk, place) hears of it before.
template <class Pointer, class Moved>
void move_misaligned(std::span<DeviceChunk> chunks, Pointer DeviceChunk::* at, std::uint32_t DeviceChunk::* bytes,
                     std::size_t alignment, DeviceBuffer& room, cudaStream_t stream, Moved moved) {
  const auto is_aligned = [&](const DeviceChunk& chunk) {
    return reinterpret_cast<std::uintptr_t>(chunk.*at) % alignment == 0;
  };
  std::size_t all = 0;
  for (const DeviceChunk& chunk : chunks) all += is_aligned(chunk) ? 0 : in_slots(chunk.*bytes);
  grow(room, all, stream);
  std::byte* place = room.data();
  for (DeviceChunk& chunk : chunks) {
    if (is_aligned(chunk)) continue;
    moved(chunk, place);
    chunk.*at = place;
    place += in_slots(chunk.*bytes);
  }
}

bool is_driver_new_enough(std::uint32_t cuda_version) {
  const auto driver = static_cast<std::uint32_t>(cuda_report().driver_version);
  return driver / 1000 >= cuda_version / 1000;  // minor versions get on with each other
}

}  // namespace

bool is_of_nvcomp(CodecId codec) noexcept {
  return codec == CodecId::kLz4 || codec == CodecId::kBitcomp || codec == CodecId::kAns;
}

bool nvcomp_takes(CodecId codec, Datatype type) noexcept {
  return is_of_nvcomp(codec) && !(codec == CodecId::kLz4 && lz4_splits(type));
}

bool has_nvcomp_for_device(CodecId codec) {
  return with_codec(codec, Datatype::kBytes, [](const char*, const auto& api, const auto&, const auto&) {
    static const bool has = api.why_not.empty() && is_driver_new_enough(api.cuda_version);
    return has;
  });
}

std::size_t nvcomp_room(CodecId codec, Datatype type, std::size_t chunk_bytes) {
  return with_codec(codec, type, [&](const char* name, const auto& api, const auto& how, const auto&) {
    std::size_t bytes = 0;
    require_success(api.max_bytes(chunk_bytes, how, &bytes), name, "CompressGetMaxOutputChunkSize");
    return bytes;
  });
}

void NvcompCodec::encode_async(CodecId codec, const Encoding& how, std::span<const DeviceChunk> given,
                               std::uint32_t* sizes, cudaStream_t stream) {
  Chunks chunks(given);
  grow(tables_, sizeof(Tables), stream);
  auto* tables = reinterpret_cast<Tables*>(tables_.data());
  const std::size_t most = longest(given, &DeviceChunk::in_bytes);
  move_misaligned(
      {chunks.chunk, chunks.count}, &DeviceChunk::in, &DeviceChunk::in_bytes, alignment_to_encode(codec, how.type),
      aligned_, stream,
      [&](const DeviceChunk& chunk, std::byte* place) { copy_async(place, chunk.in, chunk.in_bytes, stream); });
  launch<set_tables>(chunks.count, stream, chunks, tables);
  if (chunks.count > 0)
    with_codec(codec, how.type, [&](const char* name, const auto& api, const auto& options, const auto&) {
      std::size_t bytes = 0;
      require_success(api.compression_room(chunks.count, most, options, &bytes, chunks.count * most, stream), name,
                      "CompressGetTempSize");
      grow(room_, bytes, stream);
      require_success(api.compress(tables->in, tables->in_bytes, most, chunks.count, room_.data(), bytes, tables->out,
                                   tables->out_bytes, options, tables->statuses, stream),
                      name, "CompressAsync");
    });
  launch<take_sizes>(chunks.all, stream, chunks, tables, sizes);
}

void NvcompCodec::decode_async(CodecId codec, Datatype type, std::span<const DeviceChunk> given, std::uint32_t* damaged,
                               cudaStream_t stream) {
  Chunks chunks(given);
  grow(tables_, sizeof(Tables), stream);
  auto* tables = reinterpret_cast<Tables*>(tables_.data());
  const std::size_t most = longest(given, &DeviceChunk::out_bytes);
  std::vector<std::byte*> places;
  for (std::uint32_t i = 0; i < chunks.all; ++i) places.push_back(chunks.chunk[i].out);
  move_misaligned({chunks.chunk, chunks.all}, &DeviceChunk::out, &DeviceChunk::out_bytes, alignment_to_decode(codec),
                  aligned_, stream, [](const DeviceChunk&, std::byte*) {});
  launch<set_tables>(chunks.count, stream, chunks, tables);
  if (chunks.count > 0)
    with_codec(codec, type, [&](const char* name, const auto& api, const auto&, const auto& options) {
      std::size_t bytes = 0;
      require_success(api.decompression_room(chunks.count, most, options, &bytes, chunks.count * most, stream), name,
                      "DecompressGetTempSize");
      grow(room_, bytes, stream);
      // Its decoder waits for the stream, and within nvCOMP nobody sees a signal or that a rank has died.
      if (codec == CodecId::kBitcomp) synchronize(stream);
      require_success(api.decompress(tables->in, tables->in_bytes, tables->most_bytes, tables->out_bytes, chunks.count,
                                     room_.data(), bytes, tables->out, options, tables->statuses, stream),
                      name, "DecompressAsync");
    });
  launch<note_damage>(chunks.all, stream, chunks, tables, damaged);
  for (std::uint32_t i = 0; i < chunks.all; ++i)
    copy_async(places[i], chunks.chunk[i].out, chunks.chunk[i].out_bytes, stream);  // nothing where both are the same
}

}  // namespace accdp
