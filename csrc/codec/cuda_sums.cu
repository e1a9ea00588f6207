// Checksums and standard deviations of device memory. Compiled without fused multiply-add, as the host's loops are.
//
//   check_words, add_up_words   per part: every parts-th word of 16 bytes, so that the threads of a warp read words
//                               that lie side by side, and memory is read once and in whole lines. The bytes in
//                               front of the first word and behind the last, where data begin or end beside one,
//                               are left.
//   join_*                      64 parts to one, in place, as often as it takes to come down to 64
//   finish_*                    one thread: the last 64 parts, and the bytes beside the words
//
// A checksum does not add up as sums do: what comes early counts times a power of x. It is linear all the same, so that
// a thread can have any words: from each to its next it multiplies what it has by the power of x that stands for all
// words in between, the same one for all threads. A thread that had a run of its own would need no such step (8 of 40
// look-ups), but would read 16 bytes of every line in turn, of more lines than the cache of a multiprocessor has. Parts
// are a power of two in number, so that tables for 19 strides are enough. For these are read from memory, through the
// cache: constant memory would hand them out to one thread after the other.
//
// Memory read: the data once, and the parts, of 4 or 24 bytes each, once and a 64th. How long that takes was not
// measured on a GPU.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "codec/crc32c_algebra.hpp"
#include "codec/cuda_floats.hpp"
#include "codec/cuda_launch.hpp"
#include "codec/cuda_sums.hpp"

namespace accdp {
namespace {

using device_codec::each_index;
using device_codec::kWide;
using device_codec::Lanes;
using device_codec::launch;

constexpr unsigned kMostPartsLog = 18;  // 256 Ki threads: what 128 multiprocessors have at once
constexpr std::size_t kLeastWords = 4;  // of a part: fewer are not worth a thread
constexpr std::size_t kJoined = 64;     // parts, by a thread
constexpr double kMost = 1e300;

/// What is read in words, and what is left beside them.
struct Cut {
  std::size_t head, words, tail;

  Cut(const std::byte* data, std::size_t bytes) {
    head = std::min(bytes, (kWide - reinterpret_cast<std::uintptr_t>(data) % kWide) % kWide);
    words = (bytes - head) / kWide;
    tail = (bytes - head) % kWide;
  }
};

unsigned parts_log(std::size_t words) {
  return static_cast<unsigned>(std::countr_zero(
      std::bit_floor(std::clamp<std::size_t>(words / kLeastWords, 1, std::size_t{1} << kMostPartsLog))));
}

// ---- checksums -------------------------------------------------------------------------------------------------

struct Tables {
  crc::Shift in_word[4] = {crc::Shift(16), crc::Shift(12), crc::Shift(8), crc::Shift(4)};
  crc::Shift stride[kMostPartsLog + 1] = {
      crc::Shift(16 << 0),  crc::Shift(16 << 1),  crc::Shift(16 << 2),  crc::Shift(16 << 3),  crc::Shift(16 << 4),
      crc::Shift(16 << 5),  crc::Shift(16 << 6),  crc::Shift(16 << 7),  crc::Shift(16 << 8),  crc::Shift(16 << 9),
      crc::Shift(16 << 10), crc::Shift(16 << 11), crc::Shift(16 << 12), crc::Shift(16 << 13), crc::Shift(16 << 14),
      crc::Shift(16 << 15), crc::Shift(16 << 16), crc::Shift(16 << 17), crc::Shift(16 << 18)};
};
__device__ constexpr Tables kTables{};

/// Of a word alone, in front of which nothing is.
__device__ std::uint32_t remainder_of(const Lanes<std::uint32_t>& word) {
  std::uint32_t remainder = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) remainder ^= kTables.in_word[i](word.lane[i]);
  return remainder;
}

/// parts[p]: the remainder as if nothing came before the part's words and those of the others were zero, up to and with
/// the last word of this part, behind which there are 2^parts_log - 1 - p more. Where the words are no multiple of the
/// parts it is the first round that is not full, as if there were zeros in front of the data, which change nothing.
__global__ void check_words(const Lanes<std::uint32_t>* words, std::size_t count, unsigned parts_log,
                            std::uint32_t* parts) {
  const std::size_t stride = std::size_t{1} << parts_log, missing = (stride - count % stride) % stride;
  const crc::Shift& over_stride = kTables.stride[parts_log];
  each_index(stride, [&](std::size_t part) {
    std::uint32_t remainder = 0;
    for (std::size_t at = part < missing ? part + stride - missing : part - missing; at < count; at += stride)
      remainder = over_stride(remainder) ^ remainder_of(words[at]);
    parts[part] = remainder;
  });
}

/// What check_words() makes of 2^from_log parts, of 2^to_log.
__device__ std::uint32_t joined(const std::uint32_t* parts, std::size_t part, unsigned from_log, unsigned to_log) {
  std::uint32_t remainder = 0;
  for (std::size_t at = part; at < std::size_t{1} << from_log; at += std::size_t{1} << to_log)
    remainder = kTables.stride[to_log](remainder) ^ parts[at];
  return remainder;
}

/// Only the thread that writes a part reads it.
__global__ void join_checks(std::uint32_t* parts, unsigned from_log, unsigned to_log) {
  each_index(std::size_t{1} << to_log, [&](std::size_t part) { parts[part] = joined(parts, part, from_log, to_log); });
}

/// over_words: the power of x that stands for all words.
__global__ void finish_check(const std::byte* data, Cut cut, const std::uint32_t* parts, unsigned parts_log,
                             std::uint32_t over_words, std::uint32_t* result) {
  each_index(1, [&](std::size_t) {
    std::uint32_t remainder = ~std::uint32_t{0};
    for (std::size_t i = 0; i < cut.head; ++i) remainder = crc::followed_by(remainder, data[i]);
    if (cut.words > 0) remainder = crc::times(remainder, over_words) ^ joined(parts, 0, parts_log, 0);
    const std::byte* const tail = data + cut.head + cut.words * kWide;
    for (std::size_t i = 0; i < cut.tail; ++i) remainder = crc::followed_by(remainder, tail[i]);
    *result = ~remainder;
  });
}

// ---- standard deviations ---------------------------------------------------------------------------------------

/// Of one thread. Around its first value, so that a large mean does not eat the digits.
struct Sums {
  double origin = 0, sum = 0, squares = 0;
  std::size_t count = 0;

  __device__ void add(double value) {
    if (!(value >= -kMost && value <= kMost)) return;  // nor NaN
    if (count == 0) origin = value;
    const double d = value - origin;
    sum += d;
    squares += d * d;
    ++count;
  }
  __device__ Spread spread() const {
    const auto n = static_cast<double>(count);
    if (count == 0) return {0, 0, 0};
    return {n, origin + sum / n, squares - sum * sum / n};
  }
};

/// After Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
__device__ Spread joined(const Spread& a, const Spread& b) {
  if (b.count == 0) return a;
  if (a.count == 0) return b;
  const double count = a.count + b.count, distance = b.mean - a.mean, share = b.count / count;
  return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
}

__device__ Spread joined(const Spread* parts, std::size_t part, std::size_t from, std::size_t to) {
  Spread all = parts[part];
  for (std::size_t at = part + to; at < from; at += to) all = joined(all, parts[at]);
  return all;
}

template <class Float>
__global__ void add_up_words(const Lanes<typename Float::T>* words, std::size_t count, std::size_t parts,
                             Spread* result) {
  each_index(parts, [&](std::size_t part) {
    Sums here;
    for (std::size_t at = part; at < count; at += parts) {
      const Lanes<typename Float::T> word = words[at];
#pragma unroll
      for (std::size_t i = 0; i < kWide / sizeof(typename Float::T); ++i)
        here.add(static_cast<double>(Float::load(word.lane[i])));
    }
    result[part] = here.spread();
  });
}

/// Only the thread that writes a part reads it.
__global__ void join_spreads(Spread* parts, std::size_t from, std::size_t to) {
  each_index(to, [&](std::size_t part) { parts[part] = joined(parts, part, from, to); });
}

template <class Float>
__global__ void finish_spread(const std::byte* data, Cut cut, const Spread* parts, std::size_t count, Spread* result) {
  using T = typename Float::T;
  each_index(1, [&](std::size_t) {
    Sums beside;
    const auto add = [&](const std::byte* from, std::size_t bytes) {
      for (std::size_t i = 0; i < bytes / sizeof(T); ++i)
        beside.add(static_cast<double>(Float::load(reinterpret_cast<const T*>(from)[i])));
    };
    add(data, cut.head);
    add(data + cut.head + cut.words * kWide, cut.tail);
    const Spread rest = beside.spread();
    *result = cut.words > 0 ? joined(joined(parts, 0, count, 1), rest) : rest;
  });
}

}  // namespace

std::size_t sum_parts(std::size_t bytes) { return std::size_t{1} << parts_log(bytes / kWide); }

void crc32c_async(const std::byte* data, std::size_t bytes, std::uint32_t* parts, std::uint32_t* result,
                  cudaStream_t stream) {
  const Cut cut(data, bytes);
  unsigned log = parts_log(cut.words);
  if (cut.words > 0)
    launch<check_words>(std::size_t{1} << log, stream, reinterpret_cast<const Lanes<std::uint32_t>*>(data + cut.head),
                        cut.words, log, parts);
  constexpr unsigned kJoinedLog = std::countr_zero(kJoined);
  for (; log > kJoinedLog; log -= kJoinedLog)
    launch<join_checks>(std::size_t{1} << (log - kJoinedLog), stream, parts, log, log - kJoinedLog);
  launch<finish_check>(1, stream, data, cut, static_cast<const std::uint32_t*>(parts), log,
                       crc::power_of_bytes(cut.words * kWide), result);
}

void spread_async(Datatype type, const std::byte* data, std::size_t bytes, Spread* parts, Spread* result,
                  cudaStream_t stream) {
  device_codec::with_float(type, "a standard deviation", [&](auto kind) {
    using Float = decltype(kind);
    const Cut cut(data, bytes);
    std::size_t count = std::size_t{1} << parts_log(cut.words);
    if (cut.words > 0)
      launch<add_up_words<Float>>(count, stream, reinterpret_cast<const Lanes<typename Float::T>*>(data + cut.head),
                                  cut.words, count, parts);
    for (; count > kJoined; count /= kJoined)
      launch<join_spreads>(count / kJoined, stream, parts, count, count / kJoined);
    launch<finish_spread<Float>>(1, stream, data, cut, static_cast<const Spread*>(parts), count, result);
  });
}

double deviation_of(const Spread& spread) noexcept {
  if (spread.count < 2) return 0;
  const double variance = spread.squares / spread.count;
  return variance > 0 && std::isfinite(variance) ? std::sqrt(variance) : 0;
}

}  // namespace accdp
