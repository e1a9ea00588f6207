#pragma once
// The kernels around the block formats of fpk and qpk (cuda_fpk.hpp, cuda_qpk.hpp), for the stream of
// codec/block_stream.hpp. A thread works on a segment, 32 consecutive elements, which are one word of every bit plane:
// no thread needs another one's registers, so that every pass is elementwise. Passes of an encoder:
//   survey   per segment: what it adds to the choice of its block's code
//   count    per segment: how many elements each code would leave out (fpk)
//   plan     per block: its code and size
//   add_up   per 64 blocks: their bytes together
//   place    per block: where it begins, its entry in the table of sizes; the size of the stream
//   write    per segment: its words of all planes, its escapes
//   tail     per byte that fills no block
// A decoder opens the table, adds up, places, and reads.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/cuda_chunk.hpp"
#include "codec/cuda_launch.hpp"

namespace accdp::device_codec {

constexpr std::uint32_t kSegment = 32, kGroup = 64;

/// How a block is stored. 0 bytes: all zeros; as many as it has: as it is.
struct BlockPlan {
  std::uint16_t bytes;
  std::uint8_t rest, planes, base, below;
};

struct Batch {
  DeviceChunk chunks[kMostDeviceChunks];
  std::uint32_t count;
  std::uint32_t segments, blocks, groups;  ///< room for each chunk in the arrays below
};

/// Intermediate results: of chunk c from element c * (room for each) on.
struct Scratch {
  std::uint32_t *summaries, *offsets, *sums, *largest;
  std::uint8_t* counts;
  BlockPlan* plans;
};

template <class Format>
struct Shape {
  using T = typename Format::T;
  static constexpr std::uint32_t kSegments = Format::kBlock / kSegment;  // of a block
  static constexpr std::uint32_t kBlockBytes = Format::kBlock * sizeof(T);
  std::uint32_t blocks, table, tail;

  __device__ explicit Shape(std::uint32_t bytes)
      : blocks(bytes / kBlockBytes), table((2 * blocks + 7) / 8 * 8), tail(bytes % kBlockBytes) {}
};

template <class T>
struct alignas(16) Pack {
  T lane[16 / sizeof(T)];
};
__device__ inline bool is_wide(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

template <class T>
__device__ void load(const std::byte* from, T (&x)[kSegment]) {
  constexpr std::uint32_t kLanes = 16 / sizeof(T);
  if (is_wide(from)) {
#pragma unroll
    for (std::uint32_t p = 0; p < kSegment / kLanes; ++p) {
      const Pack<T> pack = reinterpret_cast<const Pack<T>*>(from)[p];
#pragma unroll
      for (std::uint32_t l = 0; l < kLanes; ++l) x[p * kLanes + l] = pack.lane[l];
    }
  } else {
#pragma unroll
    for (std::uint32_t i = 0; i < kSegment; ++i) x[i] = reinterpret_cast<const T*>(from)[i];
  }
}

template <class T>
__device__ void store(const T (&x)[kSegment], std::byte* to) {
  constexpr std::uint32_t kLanes = 16 / sizeof(T);
  if (is_wide(to)) {
#pragma unroll
    for (std::uint32_t p = 0; p < kSegment / kLanes; ++p) {
      Pack<T> pack;
#pragma unroll
      for (std::uint32_t l = 0; l < kLanes; ++l) pack.lane[l] = x[p * kLanes + l];
      reinterpret_cast<Pack<T>*>(to)[p] = pack;
    }
  } else {
#pragma unroll
    for (std::uint32_t i = 0; i < kSegment; ++i) reinterpret_cast<T*>(to)[i] = x[i];
  }
}

/// A block that is not encoded lies at a multiple of 4 only.
template <class T>
__device__ void store_words(const T (&x)[kSegment], std::uint32_t* to) {
  constexpr std::uint32_t kLanes = 4 / sizeof(T);
#pragma unroll
  for (std::uint32_t w = 0; w < kSegment / kLanes; ++w) {
    std::uint32_t word = 0;
#pragma unroll
    for (std::uint32_t l = 0; l < kLanes; ++l)
      word |= static_cast<std::uint32_t>(x[w * kLanes + l]) << (8 * sizeof(T) * l);
    to[w] = word;
  }
}
template <class T>
__device__ void load_words(const std::uint32_t* from, T (&x)[kSegment]) {
  constexpr std::uint32_t kLanes = 4 / sizeof(T);
#pragma unroll
  for (std::uint32_t i = 0; i < kSegment; ++i)
    x[i] = static_cast<T>(from[i / kLanes] >> (8 * sizeof(T) * (i % kLanes)));
}

/// Calls each(chunk's number, chunk, number within it) for the first of(chunk) of `room` numbers of every chunk.
template <class Of, class Each>
__device__ void each_in_chunks(const Batch& batch, std::uint32_t room, Of of, Each each) {
  each_index(std::size_t{batch.count} * room, [&](std::size_t i) {
    const auto c = static_cast<std::uint32_t>(i / room), k = static_cast<std::uint32_t>(i % room);
    if (k < of(batch.chunks[c])) each(c, batch.chunks[c], k);
  });
}

/// Of an encoder: each(chunk's number, chunk, segment) for every segment of its blocks.
template <class Format, class Each>
__device__ void each_segment(const Batch& batch, Each each) {
  using S = Shape<Format>;
  each_in_chunks(
      batch, batch.segments, [](const DeviceChunk& chunk) { return S(chunk.in_bytes).blocks * S::kSegments; }, each);
}

/// The counts of a segment.
template <class Format>
__device__ std::uint8_t* counts_of(const Batch& batch, const Scratch& scratch, std::uint32_t c, std::uint32_t segment) {
  return scratch.counts + (std::size_t{c} * batch.segments + segment) * Format::kCounts;
}

template <class Format>
__device__ std::uint32_t merged(const Batch& batch, const Scratch& scratch, std::uint32_t c, std::uint32_t block) {
  const std::uint32_t* first = scratch.summaries + c * batch.segments + block * Shape<Format>::kSegments;
  std::uint32_t all = first[0];
  for (std::uint32_t s = 1; s < Shape<Format>::kSegments; ++s) all = Format::merge(all, first[s]);
  return all;
}

template <class Format>
__global__ void survey(Batch batch, Scratch scratch, typename Format::Parameters parameters) {
  each_segment<Format>(batch, [&](std::uint32_t c, const DeviceChunk& chunk, std::uint32_t s) {
    typename Format::T x[kSegment];
    load(chunk.in + std::size_t{s} * sizeof x, x);
    scratch.summaries[c * batch.segments + s] = Format(parameters, scratch, c).summary(x);
  });
}

template <class Format>
__global__ void count(Batch batch, Scratch scratch) {
  each_segment<Format>(batch, [&](std::uint32_t c, const DeviceChunk& chunk, std::uint32_t s) {
    typename Format::T x[kSegment];
    load(chunk.in + std::size_t{s} * sizeof x, x);
    Format::count(x, merged<Format>(batch, scratch, c, s / Shape<Format>::kSegments),
                  counts_of<Format>(batch, scratch, c, s));
  });
}

template <class Format>
__global__ void plan(Batch batch, Scratch scratch) {
  using S = Shape<Format>;
  each_in_chunks(
      batch, batch.blocks, [](const DeviceChunk& chunk) { return S(chunk.in_bytes).blocks; },
      [&](std::uint32_t c, const DeviceChunk&, std::uint32_t b) {
        const std::uint8_t* counts = counts_of<Format>(batch, scratch, c, b * S::kSegments);
        std::uint16_t sums[Format::kCounts + 1] = {};
        for (std::uint32_t s = 0; s < S::kSegments; ++s)
          for (std::uint32_t code = 0; code != Format::kCounts; ++code)
            sums[code] = static_cast<std::uint16_t>(sums[code] + *counts++);
        scratch.plans[c * batch.blocks + b] = Format::plan(merged<Format>(batch, scratch, c, b), sums);
      });
}

/// Of a stream: what its table says of the blocks.
template <class Format>
__global__ void open(Batch batch, Scratch scratch, std::uint32_t* damaged) {
  using S = Shape<Format>;
  each_in_chunks(
      batch, batch.blocks, [](const DeviceChunk& chunk) { return S(chunk.out_bytes).blocks; },
      [&](std::uint32_t c, const DeviceChunk& chunk, std::uint32_t b) {
        std::uint16_t bytes = 0;
        if (Format::kHead + S(chunk.out_bytes).table <= chunk.in_bytes)
          bytes = reinterpret_cast<const std::uint16_t*>(chunk.in + Format::kHead)[b];
        if (bytes > S::kBlockBytes || bytes % 4) bytes = 0, *damaged = 1;
        scratch.plans[c * batch.blocks + b] = {bytes, 0, 0, 0, 0};
      });
}

template <class Format, bool kEncodes>
__global__ void add_up(Batch batch, Scratch scratch) {
  using S = Shape<Format>;
  const auto blocks = [](const DeviceChunk& chunk) { return S(kEncodes ? chunk.in_bytes : chunk.out_bytes).blocks; };
  each_in_chunks(
      batch, batch.groups, [&](const DeviceChunk& chunk) { return (blocks(chunk) + kGroup - 1) / kGroup; },
      [&](std::uint32_t c, const DeviceChunk& chunk, std::uint32_t g) {
        const std::uint32_t all = blocks(chunk), first = g * kGroup, end = first + kGroup < all ? first + kGroup : all;
        std::uint32_t sum = 0;
#pragma unroll 8
        for (std::uint32_t b = first; b < end; ++b) sum += scratch.plans[c * batch.blocks + b].bytes;
        scratch.sums[c * batch.groups + g] = sum;
      });
}

/// Where a block begins; one more than there are blocks: where the tail does.
__device__ inline std::uint32_t place_of(const Batch& batch, const Scratch& scratch, std::uint32_t c, std::uint32_t b,
                                         std::uint32_t first) {
  std::uint32_t at = first;
  for (std::uint32_t g = 0; g < b / kGroup; ++g) at += scratch.sums[c * batch.groups + g];
  for (std::uint32_t k = b / kGroup * kGroup; k < b; ++k) at += scratch.plans[c * batch.blocks + k].bytes;
  scratch.offsets[c * (batch.blocks + 1) + b] = at;
  return at;
}

template <class Format>
__global__ void place(Batch batch, Scratch scratch, typename Format::Parameters parameters, std::uint32_t* sizes) {
  using S = Shape<Format>;
  each_in_chunks(
      batch, batch.blocks + 1, [](const DeviceChunk& chunk) { return S(chunk.in_bytes).blocks + 1; },
      [&](std::uint32_t c, const DeviceChunk& chunk, std::uint32_t b) {
        const S shape(chunk.in_bytes);
        const std::uint32_t at = place_of(batch, scratch, c, b, Format::kHead + shape.table);
        auto* table = reinterpret_cast<std::uint16_t*>(chunk.out + Format::kHead);
        if (b < shape.blocks) {
          table[b] = scratch.plans[c * batch.blocks + b].bytes;
          return;
        }
        for (std::uint32_t k = b; 2 * k < shape.table; ++k) table[k] = 0;
        const bool has_step = Format(parameters, scratch, c).put_head(chunk.out);
        sizes[c] = has_step && at + shape.tail < chunk.in_bytes ? at + shape.tail : 0;
      });
}

template <class Format>
__global__ void place_again(Batch batch, Scratch scratch, std::uint32_t* damaged) {
  using S = Shape<Format>;
  each_in_chunks(
      batch, batch.blocks + 1, [](const DeviceChunk& chunk) { return S(chunk.out_bytes).blocks + 1; },
      [&](std::uint32_t c, const DeviceChunk& chunk, std::uint32_t b) {
        const S shape(chunk.out_bytes);
        const std::uint32_t at = place_of(batch, scratch, c, b, Format::kHead + shape.table);
        if (b == shape.blocks && at + shape.tail != chunk.in_bytes) *damaged = 1;
      });
}

template <class Format>
__global__ void write(Batch batch, Scratch scratch, typename Format::Parameters parameters) {
  using S = Shape<Format>;
  each_segment<Format>(batch, [&](std::uint32_t c, const DeviceChunk& chunk, std::uint32_t i) {
    const std::uint32_t b = i / S::kSegments, s = i % S::kSegments;
    const BlockPlan found = scratch.plans[c * batch.blocks + b];
    if (found.bytes == 0) return;
    typename Format::T x[kSegment];
    load(chunk.in + std::size_t{i} * sizeof x, x);
    auto* to = reinterpret_cast<std::uint32_t*>(chunk.out + scratch.offsets[c * (batch.blocks + 1) + b]);
    if (found.bytes == S::kBlockBytes) return store_words(x, to + s * (sizeof x / 4));
    const std::uint8_t* counts = counts_of<Format>(batch, scratch, c, b * S::kSegments);
    Format(parameters, scratch, c).write(x, s, found, counts, to);
  });
}

template <class Format>
__global__ void read(Batch batch, Scratch scratch, std::uint32_t* damaged) {
  using S = Shape<Format>;
  each_in_chunks(
      batch, batch.segments, [](const DeviceChunk& chunk) { return S(chunk.out_bytes).blocks * S::kSegments; },
      [&](std::uint32_t c, const DeviceChunk& chunk, std::uint32_t i) {
        const std::uint32_t b = i / S::kSegments, s = i % S::kSegments;
        const std::uint32_t bytes = scratch.plans[c * batch.blocks + b].bytes;
        const std::uint32_t at = scratch.offsets[c * (batch.blocks + 1) + b];
        typename Format::T x[kSegment] = {};
        bool good = at <= chunk.in_bytes && bytes <= chunk.in_bytes - at;
        if (good && bytes > 0) {
          const auto* from = reinterpret_cast<const std::uint32_t*>(chunk.in + at);
          if (bytes == S::kBlockBytes)
            load_words(from + s * (sizeof x / 4), x);
          else
            good = Format::read(from, bytes, s, chunk.step, x);
        }
        if (!good) *damaged = 1;
        store(x, chunk.out + std::size_t{i} * sizeof x);
      });
}

/// The elements that fill no block, byte by byte: fewer than a block has.
template <class Format, bool kEncodes>
__global__ void tail(Batch batch, Scratch scratch) {
  using S = Shape<Format>;
  each_in_chunks(
      batch, S::kBlockBytes,
      [](const DeviceChunk& chunk) { return S(kEncodes ? chunk.in_bytes : chunk.out_bytes).tail; },
      [&](std::uint32_t c, const DeviceChunk& chunk, std::uint32_t k) {
        const S shape(kEncodes ? chunk.in_bytes : chunk.out_bytes);
        const std::uint32_t encoded = scratch.offsets[c * (batch.blocks + 1) + shape.blocks] + k;
        const std::size_t plain = std::size_t{shape.blocks} * S::kBlockBytes + k;
        if (kEncodes)
          chunk.out[encoded] = chunk.in[plain];
        else if (encoded < chunk.in_bytes)
          chunk.out[plain] = chunk.in[encoded];
      });
}

}  // namespace accdp::device_codec
