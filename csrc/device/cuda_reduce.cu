// Elementwise reductions on the device. The host loops that these kernels equal are those of reduce_kernels.hpp, which
// reduce() runs: same order of sources, float32 accumulation of short floats, one rounding. Compiled without fused
// multiply-add, which the host loops do not use either.
//
// One kernel per type; the operation is an argument, because a branch that all threads take alike costs nothing beside
// the memory accesses, and a kernel per pair would take eight times as long to compile.
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "device/cuda.hpp"
#include "device/cuda_reduce.hpp"

#define ACCDP_ISA on_device
#define ACCDP_FUNCTION __device__
#include "device/float8.hpp"

namespace accdp {
namespace {

struct Sources {
  const void* at[kMostSources];
  int count;
  std::uint32_t narrow;  // bit s: at[s] is not at a multiple of 16 bytes
};
static_assert(kMostSources <= 32);

// How elements lie in memory (T) and are accumulated (Acc), as in reduce_kernels.hpp.
template <class Element>
struct Plain {
  using T = Element;
  using Acc = Element;
  static __device__ Acc load(T x) { return x; }
  static __device__ T store(Acc x) { return x; }
};
struct Bool {
  using T = std::uint8_t;
  using Acc = bool;
  static __device__ Acc load(T x) { return x != 0; }
  static __device__ T store(Acc x) { return x; }
};
struct Half {
  using T = __half;
  using Acc = float;
  static __device__ Acc load(T x) { return __half2float(x); }
  static __device__ T store(Acc x) { return __float2half_rn(x); }
};
struct BFloat16 {
  using T = std::uint16_t;
  using Acc = float;
  static __device__ Acc load(T x) {
    const std::uint32_t wide = std::uint32_t{x} << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  static __device__ T store(Acc x) {  // to nearest, ties to even; NaN stays NaN
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<T>((bits >> 16) | 0x40);
    return static_cast<T>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};
template <class Real>
struct Complex {
  struct T {
    Real re, im;
  };
  using Acc = T;
  static __device__ Acc load(T x) { return x; }
  static __device__ T store(Acc x) { return x; }
};

template <class T>
constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// Integers add and multiply as unsigned numbers of at least 32 bits: they may wrap, but never undefined.
template <class T, bool = kIsInteger<T>>
struct Wide {
  using type = T;
};
template <class T>
struct Wide<T, true> {
  using type = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;
};

template <class T>
__device__ T combine(ReduceOp op, T a, T b) {
  using W = typename Wide<T>::type;
  if constexpr (std::is_same_v<T, bool>) {  // sums and maxima of truth values are "or", products and minima "and"
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kMax:
      case ReduceOp::kBor: return a || b;
      case ReduceOp::kBxor: return a != b;
      default: return a && b;
    }
  } else {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg: return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
      case ReduceOp::kProd: return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
      case ReduceOp::kMin: return (b < a || b != b) ? b : a;  // a NaN wins, whichever rank it comes from
      case ReduceOp::kMax: return (b > a || b != b) ? b : a;
      default: break;
    }
    if constexpr (kIsInteger<T>) {
      if (op == ReduceOp::kBand) return static_cast<T>(a & b);
      if (op == ReduceOp::kBor) return static_cast<T>(a | b);
      return static_cast<T>(a ^ b);
    }
    return a;
  }
}
template <class Real>
__device__ typename Complex<Real>::T product(typename Complex<Real>::T a, typename Complex<Real>::T b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ Complex<float>::T combine(ReduceOp op, Complex<float>::T a, Complex<float>::T b) {
  return op == ReduceOp::kProd ? product<float>(a, b) : Complex<float>::T{a.re + b.re, a.im + b.im};
}
__device__ Complex<double>::T combine(ReduceOp op, Complex<double>::T a, Complex<double>::T b) {
  return op == ReduceOp::kProd ? product<double>(a, b) : Complex<double>::T{a.re + b.re, a.im + b.im};
}

template <class T>
__device__ T divided(T sum, int by) {
  if constexpr (kIsInteger<T>) {
    // There may be more ranks than a small integer can count. Of 64 bits a division takes many times as long.
    using Small = std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>;
    using Most = std::conditional_t<(sizeof(T) > sizeof(Small)), T, Small>;
    return static_cast<T>(static_cast<Most>(sum) / static_cast<Most>(by));
  } else if constexpr (std::is_floating_point_v<T>) {
    return sum / static_cast<T>(by);
  } else {
    return sum;  // truth values have no average
  }
}
__device__ Complex<float>::T divided(Complex<float>::T sum, int by) { return {sum.re / by, sum.im / by}; }
__device__ Complex<double>::T divided(Complex<double>::T sum, int by) { return {sum.re / by, sum.im / by}; }

/// Elements that are worked on together: 16 bytes, which one access moves where they lie at a multiple of that. Else,
/// as in a block of a tensor that begins anywhere, each element has one; those of a warp are in the same lines.
template <class T>
struct alignas(16) Pack {
  static constexpr int kLanes = 16 / sizeof(T);
  T lane[kLanes];
};
struct alignas(16) Words {
  std::uint32_t word[4];
};
/// How a pack is held until it is used. To take elements of less than 4 bytes out of what was loaded waits for the
/// load, and nvcc would do so at once, for the sake of the narrow way, whose loads give elements.
template <class T>
using Held = std::conditional_t<(sizeof(T) < sizeof(std::uint32_t)), Words, Pack<T>>;

template <class To, class From>
__device__ To same_bytes(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class T>
__device__ Held<T> load_pack(const void* from, std::size_t i, bool is_narrow) {
  if (!is_narrow) return static_cast<const Held<T>*>(from)[i];
  Pack<T> pack;
#pragma unroll
  for (int l = 0; l < Pack<T>::kLanes; ++l) pack.lane[l] = static_cast<const T*>(from)[i * Pack<T>::kLanes + l];
  return same_bytes<Held<T>>(pack);
}
/// kIsReadSoon: else the first to leave the cache.
template <bool kIsReadSoon, class T>
__device__ void store_pack(void* to, std::size_t i, const Pack<T>& pack, bool is_narrow) {
  if (!is_narrow && kIsReadSoon) {
    static_cast<Pack<T>*>(to)[i] = pack;
  } else if (!is_narrow) {
    __stcs(static_cast<uint4*>(to) + i, same_bytes<uint4>(pack));
  } else {
#pragma unroll
    for (int l = 0; l < Pack<T>::kLanes; ++l) static_cast<T*>(to)[i * Pack<T>::kLanes + l] = pack.lane[l];
  }
}

struct Target {
  void *dst, *also;
  bool is_dst_narrow, is_also_narrow;
};

/// In packs, then single elements up to `count`.
template <class Element>
__global__ void reduce_kernel(Target to, Sources srcs, std::size_t count, ReduceOp op, int divisor) {
  using T = typename Element::T;
  using Acc = typename Element::Acc;
  constexpr int kLanes = Pack<T>::kLanes;
  const std::size_t packs = count / kLanes;
  const std::size_t first = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = first; i < packs; i += stride) {
    Acc acc[kLanes]{};
    constexpr int kInFlight = 4;  // loads begun before the first is used
    for (int s = 0; s < srcs.count; s += kInFlight) {
      Held<T> held[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j)
        if (s + j < srcs.count) held[j] = load_pack<T>(srcs.at[s + j], i, srcs.narrow >> (s + j) & 1);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (s + j >= srcs.count) break;
        const Pack<T> next = same_bytes<Pack<T>>(held[j]);
        const bool is_first = s + j == 0;
#pragma unroll
        for (int l = 0; l < kLanes; ++l) {
          const Acc value = Element::load(next.lane[l]);
          acc[l] = is_first ? value : combine(op, acc[l], value);
        }
      }
    }
    Pack<T> pack;
#pragma unroll
    for (int l = 0; l < kLanes; ++l) pack.lane[l] = Element::store(divisor > 1 ? divided(acc[l], divisor) : acc[l]);
    store_pack<true>(to.dst, i, pack, to.is_dst_narrow);
    if (to.also) store_pack<false>(to.also, i, pack, to.is_also_narrow);
  }
  for (std::size_t i = packs * kLanes + first; i < count; i += stride) {
    Acc acc = Element::load(static_cast<const T*>(srcs.at[0])[i]);
    for (int s = 1; s < srcs.count; ++s) acc = combine(op, acc, Element::load(static_cast<const T*>(srcs.at[s])[i]));
    const T value = Element::store(divisor > 1 ? divided(acc, divisor) : acc);
    static_cast<T*>(to.dst)[i] = value;
    if (to.also) static_cast<T*>(to.also)[i] = value;
  }
}

using Kernel = void (*)(Target, Sources, std::size_t, ReduceOp, int);

Kernel kernel_of(Datatype type) {
  switch (type) {
    case Datatype::kBool: return reduce_kernel<Bool>;
    case Datatype::kU8: return reduce_kernel<Plain<std::uint8_t>>;
    case Datatype::kI8: return reduce_kernel<Plain<std::int8_t>>;
    case Datatype::kU16: return reduce_kernel<Plain<std::uint16_t>>;
    case Datatype::kI16: return reduce_kernel<Plain<std::int16_t>>;
    case Datatype::kU32: return reduce_kernel<Plain<std::uint32_t>>;
    case Datatype::kI32: return reduce_kernel<Plain<std::int32_t>>;
    case Datatype::kU64: return reduce_kernel<Plain<std::uint64_t>>;
    case Datatype::kI64: return reduce_kernel<Plain<std::int64_t>>;
    case Datatype::kF16: return reduce_kernel<Half>;
    case Datatype::kBF16: return reduce_kernel<BFloat16>;
    case Datatype::kF32: return reduce_kernel<Plain<float>>;
    case Datatype::kF64: return reduce_kernel<Plain<double>>;
    case Datatype::kC64: return reduce_kernel<Complex<float>>;
    case Datatype::kC128: return reduce_kernel<Complex<double>>;
    case Datatype::kF8E4M3: return reduce_kernel<on_device::Float8E4M3>;
    case Datatype::kF8E5M2: return reduce_kernel<on_device::Float8E5M2>;
    case Datatype::kBytes: break;
  }
  throw UsageError(std::string("a reduction of ") + name_of(type) + ": expected a numeric datatype");
}

bool is_narrow(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0; }

}  // namespace

void reduce_async(void* dst, void* also, std::span<const void* const> srcs, std::size_t count, const Reduction& how,
                  cudaStream_t stream) {
  check_reducible(how.type, how.op);
  if (srcs.empty() || srcs.size() > kMostSources)
    throw UsageError("a reduction of " + std::to_string(srcs.size()) + " sources: expected 1 to " +
                     std::to_string(kMostSources));
  if (count == 0) return;
  Sources sources{};
  sources.count = static_cast<int>(srcs.size());
  for (std::size_t s = 0; s < srcs.size(); ++s) {
    sources.at[s] = srcs[s];
    sources.narrow |= std::uint32_t{is_narrow(srcs[s])} << s;
  }
  constexpr unsigned kThreads = 256;
  // Enough blocks to fill any GPU of today several times; the loop in the kernel does the rest.
  constexpr std::size_t kMostBlocks = 2048;
  const std::size_t items = (count * element_bytes(how.type) + 15) / 16;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min((items + kThreads - 1) / kThreads, kMostBlocks)));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  ACCDP_CUDA(cudaLaunchKernelEx(&config, kernel_of(how.type), Target{dst, also, is_narrow(dst), is_narrow(also)},
                                sources, count, how.op, how.op == ReduceOp::kAvg ? how.divisor : 0));
}

void load_reductions() noexcept {
  for (int type = 0; type < static_cast<int>(Datatype::kBytes); ++type)
    load_kernel(reinterpret_cast<const void*>(kernel_of(static_cast<Datatype>(type))));
}

}  // namespace accdp
