// Elementwise kernels around the codecs. Differences to a reference are made by the functions that the host loops of
// codec/delta.cpp use; residuals as in codec/residual.cpp, checksums as in codec/crc32c.cpp. Compiled without fused
// multiply-add, as those are.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.hpp"
#include "codec/crc32c.hpp"
#include "codec/cuda_launch.hpp"
#include "codec/cuda_qpk.hpp"
#include "codec/cuda_transforms.hpp"
#include "codec/delta_element.hpp"

namespace accdp {
namespace {

using device_codec::each_index;
using device_codec::launch;

constexpr std::size_t kWide = 16;  // bytes of an access where all addresses are multiples of it

template <class T>
struct alignas(kWide) Lanes {
  T lane[kWide / sizeof(T)];
};

bool is_wide(const void* a, const void* b, const void* c) {
  return (reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b) |
          reinterpret_cast<std::uintptr_t>(c)) %
             kWide ==
         0;
}

template <bool kEncodes, bool kFloat, class T>
__global__ void delta(const T* in, const T* reference, T* out, std::size_t packs, std::size_t count) {
  constexpr std::size_t kLanes = kWide / sizeof(T);
  const auto one = [](T a, T b) { return kEncodes ? delta_of<kFloat>(a, b) : value_of<kFloat>(a, b); };
  each_index(packs, [&](std::size_t i) {
    Lanes<T> pack = reinterpret_cast<const Lanes<T>*>(in)[i];
    const Lanes<T> other = reinterpret_cast<const Lanes<T>*>(reference)[i];
#pragma unroll
    for (std::size_t l = 0; l < kLanes; ++l) pack.lane[l] = one(pack.lane[l], other.lane[l]);
    reinterpret_cast<Lanes<T>*>(out)[i] = pack;
  });
  const std::size_t first = packs * kLanes;
  each_index(count - first, [&](std::size_t i) { out[first + i] = one(in[first + i], reference[first + i]); });
}

template <bool kEncodes>
void delta_async(Datatype type, const std::byte* in, const std::byte* reference, std::byte* out, std::size_t bytes,
                 cudaStream_t stream) {
  delta_dispatch(type, [&](auto word, auto is_float) {
    using T = decltype(word);
    const std::size_t count = bytes / sizeof(T), packs = is_wide(in, reference, out) ? bytes / kWide : 0;
    if (count == 0) return;
    launch<delta<kEncodes, decltype(is_float)::value, T>>(packs ? packs : count, stream, reinterpret_cast<const T*>(in),
                                                          reinterpret_cast<const T*>(reference),
                                                          reinterpret_cast<T*>(out), packs, count);
  });
}

// How floats are held in memory (T) and what is computed with (Wide).
template <class Number>
struct Single : Number {
  using Wide = float;
};
struct Double {
  using T = double;
  using Wide = double;
  static __device__ double load(double value) { return value; }
};

template <class With>
void with_float(Datatype type, const char* what, With&& with) {
  switch (type) {
    case Datatype::kF16: return with(Single<device_codec::NumberF16>{});
    case Datatype::kBF16: return with(Single<device_codec::NumberBF16>{});
    case Datatype::kF32: return with(Single<device_codec::NumberF32>{});
    case Datatype::kF64: return with(Double{});
    default: throw UsageError(std::string(what) + " of " + name_of(type) + ": expected a float of 16 bits or more");
  }
}

template <class Float>
__global__ void subtract(const typename Float::T* exact, const typename Float::T* kept, typename Float::Wide factor,
                         float* out, std::size_t count) {
  constexpr float kMost = 0x1.fffffep127F;
  each_index(count, [&](std::size_t i) {
    const auto difference = static_cast<float>((Float::load(exact[i]) - Float::load(kept[i])) * factor);
    out[i] = difference >= -kMost && difference <= kMost ? difference : 0;  // never for NaN
  });
}

struct Nibbles {
  std::uint32_t of[16];
};
__global__ void check_runs(const std::byte* data, std::size_t bytes, Nibbles nibbles, std::uint32_t* runs) {
  each_index((bytes + kCrcRun - 1) / kCrcRun, [&](std::size_t run) {
    const std::size_t begin = run * kCrcRun, end = begin + kCrcRun < bytes ? begin + kCrcRun : bytes;
    std::uint32_t crc = ~0u;
    for (std::size_t at = begin; at < end; ++at) {
      crc ^= static_cast<std::uint32_t>(data[at]);
      crc = nibbles.of[crc & 15] ^ crc >> 4;
      crc = nibbles.of[crc & 15] ^ crc >> 4;
    }
    runs[run] = ~crc;
  });
}

constexpr std::size_t kShort = 64;  // bytes that one thread copies
struct ShortTransfers {
  static constexpr std::uint32_t kMost = 128;  // arguments of a kernel are of 4 KiB
  Transfer each[kMost];
  std::uint32_t count = 0;
};
__global__ void fetch_short(ShortTransfers transfers) {
  each_index(transfers.count, [&](std::size_t i) {
    const Transfer& one = transfers.each[i];
    for (std::size_t at = 0; at < one.bytes; ++at) one.to[at] = one.from[at];
  });
}

template <class Float>
__global__ void add_up_spread(const typename Float::T* data, std::size_t count, std::size_t parts, SpreadSums* sums) {
  constexpr double kMost = 1e300;
  const auto first = static_cast<double>(Float::load(data[0]));
  const double origin = first >= -kMost && first <= kMost ? first : 0;
  each_index(parts, [&](std::size_t part) {
    SpreadSums here{0, 0, 0};
    for (std::size_t i = part; i < count; i += parts) {
      const double d = static_cast<double>(Float::load(data[i])) - origin;
      if (!(d >= -kMost && d <= kMost)) continue;
      here.sum += d;
      here.squares += d * d;
      here.count += 1;
    }
    sums[part] = here;
  });
}

}  // namespace

void delta_encode_async(Datatype type, const std::byte* in, const std::byte* reference, std::byte* out,
                        std::size_t bytes, cudaStream_t stream) {
  delta_async<true>(type, in, reference, out, bytes, stream);
}

void delta_decode_async(Datatype type, const std::byte* delta, const std::byte* reference, std::byte* out,
                        std::size_t bytes, cudaStream_t stream) {
  delta_async<false>(type, delta, reference, out, bytes, stream);
}

void residual_async(Datatype type, const std::byte* exact, const std::byte* kept, double factor, float* out,
                    std::size_t bytes, cudaStream_t stream) {
  with_float(type, "a residual", [&](auto kind) {
    using Float = decltype(kind);
    const std::size_t count = bytes / sizeof(typename Float::T);
    if (count > 0)
      launch<subtract<Float>>(count, stream, reinterpret_cast<const typename Float::T*>(exact),
                              reinterpret_cast<const typename Float::T*>(kept),
                              static_cast<typename Float::Wide>(factor), out, count);
  });
}

void crc32c_async(const std::byte* data, std::size_t bytes, std::uint32_t* runs, cudaStream_t stream) {
  if (bytes == 0) return;
  Nibbles nibbles{};
  const auto table = crc32c_nibbles();
  std::copy(table.begin(), table.end(), nibbles.of);
  launch<check_runs>((bytes + kCrcRun - 1) / kCrcRun, stream, data, bytes, nibbles, runs);
}

void fetch_async(std::span<const Transfer> transfers, cudaStream_t stream) {
  ShortTransfers together;
  const auto flush = [&] {
    if (together.count > 0) launch<fetch_short>(together.count, stream, together);
    together.count = 0;
  };
  for (const Transfer& one : transfers) {
    if (one.bytes > kShort) {
      copy_async(one.to, one.from, one.bytes, stream);
      continue;
    }
    together.each[together.count++] = one;
    if (together.count == ShortTransfers::kMost) flush();
  }
  flush();
}

std::size_t spread_parts(Datatype type, std::size_t bytes) {
  // Little enough to copy to the host, many enough to fill a GPU.
  constexpr std::size_t kElementsPerPart = 256, kMostParts = 8192;
  return std::clamp<std::size_t>(bytes / element_bytes(type) / kElementsPerPart, 1, kMostParts);
}

void spread_async(Datatype type, const std::byte* data, std::size_t bytes, SpreadSums* sums, cudaStream_t stream) {
  with_float(type, "a standard deviation", [&](auto kind) {
    using Float = decltype(kind);
    const std::size_t count = bytes / sizeof(typename Float::T), parts = spread_parts(type, bytes);
    launch<add_up_spread<Float>>(parts, stream, reinterpret_cast<const typename Float::T*>(data), count, parts, sums);
  });
}

double deviation_of(const SpreadSums* sums, std::size_t parts) noexcept {
  double sum = 0, squares = 0, n = 0;
  for (std::size_t i = 0; i < parts; ++i) sum += sums[i].sum, squares += sums[i].squares, n += sums[i].count;
  if (n < 2) return 0;
  const double variance = (squares - sum * sum / n) / n;
  return variance > 0 && std::isfinite(variance) ? std::sqrt(variance) : 0;
}

}  // namespace accdp
