// Host side of the codecs' kernels: which passes, over how many threads. Compiled without fused multiply-add, which the
// host loops do not use either.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.hpp"
#include "base/rounding.hpp"
#include "codec/bitcomp.hpp"
#include "codec/cuda_codec.hpp"
#include "codec/cuda_fpk.hpp"
#include "codec/cuda_qpk.hpp"
#include "codec/fpk.hpp"
#include "codec/quantiser.hpp"

namespace accdp {
namespace {

using namespace device_codec;

constexpr std::size_t kMostCounts = FpkIntegers<std::uint32_t>::kCounts;

// Steps of qpk depend on the data only by the exponent of the largest element, which the device finds.
template <class Number>
__global__ void find_largest(Batch batch, Scratch scratch) {
  using T = typename Number::T;
  each_in_chunks(
      batch, batch.segments,
      [](const DeviceChunk& chunk) { return (chunk.in_bytes / std::uint32_t{sizeof(T)} + kSegment - 1) / kSegment; },
      [&](std::uint32_t c, const DeviceChunk& chunk, std::uint32_t s) {
        const std::uint32_t end = chunk.in_bytes / std::uint32_t{sizeof(T)}, first = s * kSegment;
        const T* const in = reinterpret_cast<const T*>(chunk.in) + first;
        std::uint32_t largest = 0;
        const auto look_at = [&](T one) {
          const std::uint32_t exponent = Number::exponent(one);
          largest = exponent > largest ? exponent : largest;
        };
        if (first + kSegment <= end) {
          T x[kSegment];
          load(reinterpret_cast<const std::byte*>(in), x);
#pragma unroll
          for (T one : x) look_at(one);
        } else {
          for (std::uint32_t i = 0; first + i < end; ++i) look_at(in[i]);
        }
        // It only grows, so that an older value costs no more than a step too many, of all threads on one word.
        if (largest > scratch.largest[c]) atomicMax(scratch.largest + c, largest);
      });
}

__global__ void set_zero(std::uint32_t* words, std::uint32_t count) {
  each_index(count, [&](std::size_t i) { words[i] = 0; });
}

Steps steps_of(const Encoding& how) {
  if (!(how.bound > 0) || std::isinf(how.bound)) throw UsageError("qpk: the error bound must be finite and > 0");
  Steps steps{};
  const bool is_half = how.type == Datatype::kF16;
  const int exponents = how.type == Datatype::kF32 ? 1 : is_half ? 32 : 256, bias = is_half ? 15 : 127;
  for (int e = 0; e < exponents; ++e) {
    // The uppermost exponent is that of infinity, for which the largest finite number counts.
    const int binade = std::clamp(e, 1, std::max(exponents - 2, 1)) - bias;
    const double largest = how.type == Datatype::kF32 ? 0 : std::ldexp(1.0, binade);
    steps.step[e] = Quantiser::step_for(how.type, how.bound, largest);
    if (steps.step[e] != 0) steps.limit[e] = Quantiser::limit_for(how.type, steps.step[e]);
  }
  return steps;
}

/// Calls `with` with the format of a codec for a datatype.
template <class With>
void dispatch(CodecId codec, Datatype type, With&& with) {
  if (codec == CodecId::kFpk) {
    switch (type) {
      case Datatype::kF32: return with(static_cast<FpkFloats<PartsF32>*>(nullptr));
      case Datatype::kBF16: return with(static_cast<FpkFloats<PartsBF16>*>(nullptr));
      case Datatype::kF16: return with(static_cast<FpkFloats<PartsF16>*>(nullptr));
      case Datatype::kU16: return with(static_cast<FpkIntegers<std::uint16_t>*>(nullptr));
      case Datatype::kU32: return with(static_cast<FpkIntegers<std::uint32_t>*>(nullptr));
      default: break;
    }
  } else if (codec == CodecId::kQpk) {
    switch (type) {
      case Datatype::kF32: return with(static_cast<Qpk<NumberF32>*>(nullptr));
      case Datatype::kBF16: return with(static_cast<Qpk<NumberBF16>*>(nullptr));
      case Datatype::kF16: return with(static_cast<Qpk<NumberF16>*>(nullptr));
      default: break;
    }
  }
  throw UsageError(std::string("encoding ") + name_of(type) +
                   " on a device: expected fpk, qpk, lz4 or bitcomp, and what they take there");
}

void find_largest_of(Datatype type, const Batch& batch, const Scratch& scratch, cudaStream_t stream) {
  launch<set_zero>(batch.count, stream, scratch.largest, batch.count);
  const std::size_t threads = std::size_t{batch.count} * batch.segments;
  if (type == Datatype::kBF16) launch<find_largest<NumberBF16>>(threads, stream, batch, scratch);
  if (type == Datatype::kF16) launch<find_largest<NumberF16>>(threads, stream, batch, scratch);
}

/// Only where there is one: most chunks are cut along blocks.
template <class Format, bool kEncodes>
void launch_tail(std::span<const DeviceChunk> chunks, cudaStream_t stream, const Batch& batch, const Scratch& scratch) {
  using S = device_codec::Shape<Format>;
  const auto has_tail = [](const DeviceChunk& chunk) {
    return S(kEncodes ? chunk.in_bytes : chunk.out_bytes).tail > 0;
  };
  if (std::ranges::any_of(chunks, has_tail))
    launch<tail<Format, kEncodes>>(chunks.size() * S::kBlockBytes, stream, batch, scratch);
}

/// Chunks, and the memory for what is found out about them, which begins at `memory`.
struct Layout {
  Batch batch{};
  Scratch scratch{};
  std::size_t bytes = 0;

  Layout(std::size_t count, std::size_t chunk_bytes, std::byte* memory) {
    // For the smallest elements and blocks: 2 bytes, 256 elements.
    batch.count = static_cast<std::uint32_t>(count);
    batch.segments = static_cast<std::uint32_t>(chunk_bytes / (2 * kSegment) + 1);
    batch.blocks = static_cast<std::uint32_t>(chunk_bytes / (2 * Quantiser::kBlock) + 1);
    batch.groups = batch.blocks / kGroup + 1;
    take(scratch.summaries, count * batch.segments, memory);
    take(scratch.counts, count * batch.segments * kMostCounts, memory);
    take(scratch.plans, count * batch.blocks, memory);
    take(scratch.offsets, count * (batch.blocks + 1), memory);
    take(scratch.sums, count * batch.groups, memory);
    take(scratch.largest, count, memory);
  }

 private:
  template <class T>
  void take(T*& at, std::size_t count, std::byte* memory) {
    at = reinterpret_cast<T*>(memory + bytes);
    bytes += device_aligned(count * sizeof(T));
  }
};

}  // namespace

bool encodes_on_device(CodecId codec, Datatype type) {
  return (codec == CodecId::kFpk && fpk_takes(type)) || (codec == CodecId::kQpk && Quantiser::takes(type)) ||
         nvcomp_encodes_on_device(codec, type);
}

std::vector<std::string> device_codecs() {
  std::vector<std::string> names;
  for (const CodecRow* codec : codec_rows())
    for (const Datatype type : {Datatype::kF32, Datatype::kI32, Datatype::kBytes})
      if (codec->takes(type) && encodes_on_device(codec->id, type)) {
        names.push_back(codec->name);
        break;
      }
  return names;
}

double check_head(CodecId codec, Datatype type, ConstBytes stored, std::size_t chunk_bytes) {
  if (codec == CodecId::kBitcomp) check_bitcomp_head(type, stored, chunk_bytes);
  if (codec != CodecId::kQpk) return 0;
  static_cast<void>(Quantiser("qpk", type, stored));  // looks at it
  double step;
  std::memcpy(&step, stored.data(), sizeof step);
  return step;
}

std::size_t encoded_room(CodecId codec, Datatype type, std::size_t chunk_bytes) {
  if (is_of_nvcomp(codec)) return device_aligned(nvcomp_room(codec, type, chunk_bytes));
  const std::size_t blocks = chunk_bytes / (2 * Quantiser::kBlock);
  return device_aligned(Quantiser::kHeaderBytes + 2 * blocks + 8 + chunk_bytes);
}

void load_codecs() noexcept {
  for (const void* kernel : device_codec::listed_kernels()) load_kernel(kernel);
}

DeviceCodec::DeviceCodec(std::size_t chunks, std::size_t chunk_bytes)
    : scratch_(Layout(std::min(chunks, kMostDeviceChunks), chunk_bytes, nullptr).bytes) {}

bool DeviceCodec::takes(std::size_t chunks, std::size_t chunk_bytes) const {
  return Layout(chunks, chunk_bytes, nullptr).bytes <= scratch_.bytes();
}

std::size_t DeviceCodec::longest(std::span<const DeviceChunk> chunks, bool encodes) const {
  if (chunks.size() > kMostDeviceChunks)
    throw UsageError(std::to_string(chunks.size()) + " chunks: expected up to " + std::to_string(kMostDeviceChunks));
  std::size_t bytes = 0;
  for (const DeviceChunk& chunk : chunks)
    bytes = std::max<std::size_t>(bytes, encodes ? chunk.in_bytes : chunk.out_bytes);
  if (!takes(chunks.size(), bytes))
    throw UsageError(std::to_string(chunks.size()) + " chunks of up to " + std::to_string(bytes) +
                     " bytes: expected a codec made for as many");
  return bytes;
}

void DeviceCodec::encode_async(CodecId codec, const Encoding& how, std::span<const DeviceChunk> chunks,
                               std::uint32_t* sizes, cudaStream_t stream) {
  const std::size_t chunk_bytes = longest(chunks, true);
  if (chunks.empty()) return;
  if (nvcomp_takes(codec, how.type)) return nvcomp_.encode_async(codec, how, chunks, sizes, stream);
  dispatch(codec, how.type, [&](auto* format) {
    using Format = std::remove_pointer_t<decltype(format)>;
    Layout layout(chunks.size(), chunk_bytes, scratch_.data());
    Batch& batch = layout.batch;
    const Scratch& scratch = layout.scratch;
    std::copy(chunks.begin(), chunks.end(), batch.chunks);
    typename Format::Parameters parameters{};
    if constexpr (std::is_same_v<typename Format::Parameters, Steps>) {
      parameters = steps_of(how);
      find_largest_of(how.type, batch, scratch, stream);
    }
    const std::size_t count_ = chunks.size(), segments = count_ * batch.segments, blocks = count_ * batch.blocks;
    launch<survey<Format>>(segments, stream, batch, scratch, parameters);
    if constexpr (Format::kCounts > 0) launch<count<Format>>(segments, stream, batch, scratch);
    launch<plan<Format>>(blocks, stream, batch, scratch);
    launch<add_up<Format, true>>(count_ * batch.groups, stream, batch, scratch);
    launch<place<Format>>(blocks + count_, stream, batch, scratch, parameters, sizes);
    launch<write<Format>>(segments, stream, batch, scratch, parameters);
    launch_tail<Format, true>(chunks, stream, batch, scratch);
  });
}

void DeviceCodec::decode_async(CodecId codec, Datatype type, std::span<const DeviceChunk> chunks,
                               std::uint32_t* damaged, cudaStream_t stream) {
  const std::size_t chunk_bytes = longest(chunks, false);
  if (chunks.empty()) return;
  if (nvcomp_takes(codec, type)) return nvcomp_.decode_async(codec, type, chunks, damaged, stream);
  dispatch(codec, type, [&](auto* format) {
    using Format = std::remove_pointer_t<decltype(format)>;
    Layout layout(chunks.size(), chunk_bytes, scratch_.data());
    Batch& batch = layout.batch;
    const Scratch& scratch = layout.scratch;
    std::copy(chunks.begin(), chunks.end(), batch.chunks);
    const std::size_t count_ = chunks.size(), segments = count_ * batch.segments, blocks = count_ * batch.blocks;
    launch<device_codec::open<Format>>(blocks, stream, batch, scratch, damaged);
    launch<add_up<Format, false>>(count_ * batch.groups, stream, batch, scratch);
    launch<place_again<Format>>(blocks + count_, stream, batch, scratch, damaged);
    launch<device_codec::read<Format>>(segments, stream, batch, scratch, damaged);
    launch_tail<Format, false>(chunks, stream, batch, scratch);
  });
}

}  // namespace accdp
