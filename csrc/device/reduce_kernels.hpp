// The reduction loops, included once per instruction set: ACCDP_ISA names the namespace, and the
// includer has set the compiler's target. Every include of a standard header stands in the includer,
// before the target changes, so that no shared inline function is compiled for the wrong processor.
#define ACCDP_FUNCTION
#include "device/float8.hpp"
#undef ACCDP_FUNCTION

namespace accdp::ACCDP_ISA {

// One block of accumulators stays in the first-level cache while all sources pass over it.
constexpr std::size_t kBlock = 1024;

inline float to_float(std::uint16_t bits) {  // bfloat16
  std::uint32_t wide = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}
inline std::uint16_t to_bfloat16(float value) {  // round to nearest, ties to even; NaN stays NaN
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  std::uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

// How elements of each type are held in memory (T) and accumulated (Acc).
template <class Element>
struct Plain {
  using T = Element;
  using Acc = Element;
  static Acc load(T x) { return x; }
  static T store(Acc x) { return x; }
};
struct Half {
  using T = Float16;
  using Acc = float;
  static Acc load(T x) { return static_cast<float>(x); }
  static T store(Acc x) { return static_cast<Float16>(x); }
};
struct BFloat16 {
  using T = std::uint16_t;
  using Acc = float;
  static Acc load(T x) { return to_float(x); }
  static T store(Acc x) { return to_bfloat16(x); }
};
template <class Real>
struct Complex {
  struct __attribute__((packed, may_alias)) T {
    Real re, im;
  };
  using Acc = std::complex<Real>;
  static Acc load(const T& x) { return {x.re, x.im}; }
  static T store(const Acc& x) { return {x.real(), x.imag()}; }
};
struct Bool {
  using T = std::uint8_t;
  using Acc = std::uint8_t;
  static Acc load(T x) { return x != 0; }
  static T store(Acc x) { return x; }
};

// Integers add and multiply as unsigned numbers: the sum of two int32 may wrap, but never undefined.
template <class T>
struct Arithmetic {
  using type = T;
};
template <class T>
  requires std::is_integral_v<T>
struct Arithmetic<T> {
  // at least 32 bits wide: two uint16 would otherwise be promoted to a signed int and may overflow it
  using type = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;
};
template <class T>
using arithmetic_t = typename Arithmetic<T>::type;

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<arithmetic_t<T>>(a) + static_cast<arithmetic_t<T>>(b));
  }
};
struct Prod {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<arithmetic_t<T>>(a) * static_cast<arithmetic_t<T>>(b));
  }
};
// A NaN wins over any number, whichever rank it comes from, as in torch.minimum and torch.maximum.
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return (b < a || b != b) ? b : a;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return (b > a || b != b) ? b : a;
  }
};
struct Band {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Bor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Bxor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

template <class Acc>
Acc divided(Acc sum, int by) {
  // Processors divide floats side by side, integers one by one. A double has 20 bits more than the quotient of such
  // integers, and what is no whole number is at least 1/by away from the next one: rounding never reaches it.
  if constexpr (std::is_integral_v<Acc> && sizeof(Acc) < 8)
    return static_cast<Acc>(static_cast<double>(sum) / by);
  else
    return sum / static_cast<Acc>(by);
}
template <class Real>
std::complex<Real> divided(std::complex<Real> sum, int by) {  // by a real number
  return {sum.real() / static_cast<Real>(by), sum.imag() / static_cast<Real>(by)};
}

// Buffers come from callers and from shared slots, so they may have any alignment and alias anything.
template <class T>
struct Loose {
  using type = T;  // a packed struct already
};
template <class T>
  requires(!std::is_class_v<T>)
struct Loose<T> {
  typedef T type __attribute__((aligned(1), may_alias));
};
template <class T>
using loose_t = typename Loose<T>::type;

// Loads, combines and stores of one block. Half and BFloat16 have their own: compilers do not vectorise the one, and
// the other at half the speed.
template <class Element, class Op>
struct Block {
  using T = loose_t<typename Element::T>;
  using Acc = typename Element::Acc;
  static void load(Acc* acc, const T* a, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) acc[i] = Element::load(a[i]);
  }
  static void load_two(Acc* acc, const T* a, const T* b, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) acc[i] = Op::apply(Element::load(a[i]), Element::load(b[i]));
  }
  static void combine(Acc* acc, const T* b, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) acc[i] = Op::apply(acc[i], Element::load(b[i]));
  }
  static void store(T* dst, const Acc* acc, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) dst[i] = Element::store(acc[i]);
  }
};
#ifdef ACCDP_F16C
inline __m256 applied(Sum, __m256 a, __m256 b) { return _mm256_add_ps(a, b); }
inline __m256 applied(Prod, __m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
template <int kOrder>
__m256 ordered_or_nan(__m256 a, __m256 b) {
  return _mm256_blendv_ps(a, b, _mm256_or_ps(_mm256_cmp_ps(b, a, kOrder), _mm256_cmp_ps(b, b, _CMP_UNORD_Q)));
}
inline __m256 applied(Min, __m256 a, __m256 b) { return ordered_or_nan<_CMP_LT_OQ>(a, b); }
inline __m256 applied(Max, __m256 a, __m256 b) { return ordered_or_nan<_CMP_GT_OQ>(a, b); }

/// Of 16 bits, eight or sixteen elements at a time by Convert; the rest one by one.
template <class Element, class Convert, class Op>
struct ConvertedBlock {
  using T = loose_t<typename Element::T>;
  static __m256 widened(const T* from) {
    return Convert::widened(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void load(float* acc, const T* a, std::size_t n) {
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(acc + i, widened(a + i));
    for (; i < n; ++i) acc[i] = Element::load(a[i]);
  }
  static void load_two(float* acc, const T* a, const T* b, std::size_t n) {
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(acc + i, applied(Op(), widened(a + i), widened(b + i)));
    for (; i < n; ++i) acc[i] = Op::apply(Element::load(a[i]), Element::load(b[i]));
  }
  static void combine(float* acc, const T* b, std::size_t n) {
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(acc + i, applied(Op(), _mm256_loadu_ps(acc + i), widened(b + i)));
    for (; i < n; ++i) acc[i] = Op::apply(acc[i], Element::load(b[i]));
  }
  static void store(T* dst, const float* acc, std::size_t n) {
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + i),
                          Convert::narrowed(_mm256_loadu_ps(acc + i), _mm256_loadu_ps(acc + i + 8)));
    for (; i < n; ++i) dst[i] = Element::store(acc[i]);
  }
};
struct ConvertHalf {
  static __m256 widened(__m128i bits) { return _mm256_cvtph_ps(bits); }
  static __m256i narrowed(__m256 low, __m256 high) {
    return _mm256_set_m128i(_mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
  }
};
struct ConvertBFloat16 {
  static __m256 widened(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static __m256i rounded(__m256 value) {  // as to_bfloat16()
    const __m256i bits = _mm256_castps_si256(value), high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, is_nan);
  }
  static __m256i narrowed(__m256 low, __m256 high) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded(low), rounded(high)), 0xd8);
  }
};
template <class Op>
struct Block<Half, Op> : ConvertedBlock<Half, ConvertHalf, Op> {};
template <class Op>
struct Block<BFloat16, Op> : ConvertedBlock<BFloat16, ConvertBFloat16, Op> {};
#endif

/// Asks for a block while the one before is reduced: what another core wrote last comes from that one's cache, for
/// which the processor itself asks too late. Allreduce of 1 and 16 MiB, 2 ranks on 2 cores of an Intel Xeon: 3 to 7 %
/// less time.
inline void prefetch(const void* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at, 0, 2);
}

template <class Element, class Op>
void run(void* dst, std::span<const void* const> srcs, std::size_t count, int divisor) {
  using T = loose_t<typename Element::T>;
  using Acc = typename Element::Acc;
  using Loops = Block<Element, Op>;
  Acc acc[kBlock];
  for (std::size_t done = 0; done < count; done += kBlock) {
    const std::size_t n = count - done < kBlock ? count - done : kBlock;
    if (count - done > n)
      for (const void* source : srcs) prefetch(static_cast<const T*>(source) + done + n, n * sizeof(T));
    const auto source = [&](std::size_t s) { return static_cast<const T*>(srcs[s]) + done; };
    if (srcs.size() > 1)
      Loops::load_two(acc, source(0), source(1), n);
    else
      Loops::load(acc, source(0), n);
    for (std::size_t s = 2; s < srcs.size(); ++s) Loops::combine(acc, source(s), n);
    if (divisor > 1)
      for (std::size_t i = 0; i < n; ++i) acc[i] = divided(acc[i], divisor);
    Loops::store(static_cast<T*>(dst) + done, acc, n);
  }
}

using Kernel = void (*)(void*, std::span<const void* const>, std::size_t, int);

template <class Element>
Kernel ordered(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return run<Element, Sum>;
    case ReduceOp::kProd: return run<Element, Prod>;
    case ReduceOp::kMin: return run<Element, Min>;
    case ReduceOp::kMax: return run<Element, Max>;
    default: return nullptr;
  }
}
template <class Element>
Kernel integer(ReduceOp op) {
  switch (op) {
    case ReduceOp::kBand: return run<Element, Band>;
    case ReduceOp::kBor: return run<Element, Bor>;
    case ReduceOp::kBxor: return run<Element, Bxor>;
    default: return ordered<Element>(op);
  }
}
template <class Element>
Kernel complex(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return run<Element, Sum>;
    case ReduceOp::kProd: return run<Element, Prod>;
    default: return nullptr;
  }
}
inline Kernel boolean(ReduceOp op) {  // sums and maxima of truth values are "or", products and minima "and"
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor: return run<Bool, Bor>;
    case ReduceOp::kProd:
    case ReduceOp::kMin:
    case ReduceOp::kBand: return run<Bool, Band>;
    case ReduceOp::kBxor: return run<Bool, Bxor>;
    default: return nullptr;
  }
}

/// The loop for a type and an operation; nullptr where the pair means nothing.
inline Kernel kernel(Datatype type, ReduceOp op) {
  switch (type) {
    case Datatype::kBool: return boolean(op);
    case Datatype::kU8: return integer<Plain<std::uint8_t>>(op);
    case Datatype::kI8: return integer<Plain<std::int8_t>>(op);
    case Datatype::kU16: return integer<Plain<std::uint16_t>>(op);
    case Datatype::kI16: return integer<Plain<std::int16_t>>(op);
    case Datatype::kU32: return integer<Plain<std::uint32_t>>(op);
    case Datatype::kI32: return integer<Plain<std::int32_t>>(op);
    case Datatype::kU64: return integer<Plain<std::uint64_t>>(op);
    case Datatype::kI64: return integer<Plain<std::int64_t>>(op);
    case Datatype::kF16: return ordered<Half>(op);
    case Datatype::kBF16: return ordered<BFloat16>(op);
    case Datatype::kF32: return ordered<Plain<float>>(op);
    case Datatype::kF64: return ordered<Plain<double>>(op);
    case Datatype::kC64: return complex<Complex<float>>(op);
    case Datatype::kC128: return complex<Complex<double>>(op);
    case Datatype::kF8E4M3: return ordered<Float8E4M3>(op);
    case Datatype::kF8E5M2: return ordered<Float8E5M2>(op);
    case Datatype::kBytes: return nullptr;
  }
  return nullptr;
}

}  // namespace accdp::ACCDP_ISA
