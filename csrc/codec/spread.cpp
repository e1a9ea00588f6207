#include "codec/spread.hpp"

#include <cmath>
#include <cstring>

namespace accdp {
namespace {

// Vectors of the compiler, as wide as AVX2 has them, since GCC takes comparisons of wider ones apart. Always inlined,
// the loops are compiled for the instruction set of the function around them; the sums have the same order with each.
#define ACCDP_INLINE inline __attribute__((always_inline))

constexpr std::size_t kLanes = 4, kVectors = 2;  // sums that need not wait for each other
using Doubles = double __attribute__((vector_size(32)));
using Longs = std::int64_t __attribute__((vector_size(32)));
using Floats = float __attribute__((vector_size(16)));
using Words = std::uint32_t __attribute__((vector_size(16)));
using Shorts = std::uint16_t __attribute__((vector_size(8)));

// Variances: the square of the distance from the mean. By so much of it float32 may be wrong, of which kSpreadError
// counts three times (terms in a row + terms of all lanes and vectors + 3) roundings, halved by the root.
constexpr double kWellPlaced = 10;

/// Sums over a run of bytes, in float32: as fast as memory, where double has half as many lanes.
constexpr std::size_t kRunBytes = 8 << 10, kRunVectors = 4;
using WideFloats = float __attribute__((vector_size(32)));
using WideWords = std::uint32_t __attribute__((vector_size(32)));
struct RunSums {
  float sum = 0, squares = 0;
  /// Whether float32 could hold them: no NaN, infinity or overflow among them, nor squares that vanish.
  bool are_good() const { return squares >= 1e-20F && squares <= 1e30F; }
};
/// load(at, v, values): the v-th vector, of kRunVectors, of the elements at `at`.
template <std::size_t kStepBytes, class Load>
ACCDP_INLINE RunSums run_sums(const std::byte* run, float origin, Load load) {
  WideFloats sums[kRunVectors]{}, squares[kRunVectors]{};
  for (std::size_t at = 0; at < kRunBytes; at += kStepBytes)
    for (std::size_t v = 0; v < kRunVectors; ++v) {
      WideFloats d;
      load(run + at, v, d);
      d -= origin;
      sums[v] += d;
      squares[v] += d * d;
    }
  RunSums total;
  for (std::size_t v = 0; v < kRunVectors; ++v)
    for (std::size_t lane = 0; lane < sizeof(WideFloats) / sizeof(float); ++lane) {
      total.sum += sums[v][lane];
      total.squares += squares[v][lane];
    }
  return total;
}

struct F16 {
  static constexpr std::size_t kBytes = 2;
  static constexpr bool kHasRuns = false;
  /// Exponent and mantissa of a half, moved to where a float has them, are 2^112 times too small; infinities and NaNs
  /// have all exponent bits set and shall have them afterwards.
  ACCDP_INLINE static void load(const std::byte* at, Doubles& to) {
    Shorts bits;
    std::memcpy(&bits, at, sizeof bits);
    const Words word = __builtin_convertvector(bits, Words);
    const Words moved = (word & 0x7fff) << 13;
    const Words sign = (word & 0x8000) << 16;
    const Words beyond = (Words)((word & 0x7c00) == 0x7c00) & 0x7f800000;
    to = __builtin_convertvector((Floats)((Words)((Floats)moved * 0x1p112F) | sign | beyond), Doubles);
  }
};
struct BF16 {
  static constexpr std::size_t kBytes = 2;
  static constexpr bool kHasRuns = true;
  /// The upper and the lower halves of words are elements; their order does not matter here.
  ACCDP_INLINE static RunSums run(const std::byte* at, float origin) {
    constexpr std::size_t kStep = kRunVectors / 2 * sizeof(WideWords);
    return run_sums<kStep>(at, origin,
                           [](const std::byte* step, std::size_t v, WideFloats& values) __attribute__((always_inline)) {
                             WideWords words;
                             std::memcpy(&words, step + v / 2 * sizeof words, sizeof words);
                             values = (WideFloats)(v % 2 ? words & 0xffff0000 : words << 16);
                           });
  }
  ACCDP_INLINE static void load(const std::byte* at, Doubles& to) {
    Shorts bits;
    std::memcpy(&bits, at, sizeof bits);
    to = __builtin_convertvector((Floats)(__builtin_convertvector(bits, Words) << 16), Doubles);
  }
};
struct F32 {
  static constexpr std::size_t kBytes = 4;
  static constexpr bool kHasRuns = true;
  ACCDP_INLINE static RunSums run(const std::byte* at, float origin) {
    constexpr std::size_t kStep = kRunVectors * sizeof(WideFloats);
    return run_sums<kStep>(at, origin,
                           [](const std::byte* step, std::size_t v, WideFloats& values) __attribute__((always_inline)) {
                             std::memcpy(&values, step + v * sizeof values, sizeof values);
                           });
  }
  ACCDP_INLINE static void load(const std::byte* at, Doubles& to) {
    Floats values;
    std::memcpy(&values, at, sizeof values);
    to = __builtin_convertvector(values, Doubles);
  }
};
struct F64 {
  static constexpr std::size_t kBytes = 8;
  static constexpr bool kHasRuns = false;
  ACCDP_INLINE static void load(const std::byte* at, Doubles& to) { std::memcpy(&to, at, sizeof to); }
};

/// Around the first finite value, so that a large mean does not eat the digits; where that value turns out to lie far
/// from the others, which the digits of float32 do not suffice for, without runs.
template <class Type, bool kByRuns = Type::kHasRuns>
ACCDP_INLINE double deviation(ConstBytes data) {
  constexpr std::size_t kVector = kLanes * Type::kBytes, kStep = kVectors * kVector;
  const std::size_t whole = data.size() / kStep * kStep;
  alignas(64) std::byte last[kStep];  // what fills no step, and then NaN, which does not count
  std::memset(last, 0xff, kStep);
  if (whole < data.size()) std::memcpy(last, data.data() + whole, data.size() - whole);

  double origin = INFINITY;
  const auto look_for_origin = [&](const std::byte* at) {
    Doubles values;
    Type::load(at, values);
    for (std::size_t lane = 0; lane < kLanes && !std::isfinite(origin); ++lane) origin = values[lane];
  };
  for (std::size_t at = 0; at < whole && !std::isfinite(origin); at += kVector) look_for_origin(data.data() + at);
  for (std::size_t at = 0; at < kStep && !std::isfinite(origin); at += kVector) look_for_origin(last + at);
  if (!std::isfinite(origin)) return 0;

  Doubles sums[kVectors]{}, squares[kVectors]{};
  Longs counts[kVectors]{};
  const auto add = [&](const std::byte* step) __attribute__((always_inline)) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      Doubles values;
      Type::load(step + v * kVector, values);
      const Doubles d = values - origin;
      const Longs finite = (d <= 1e300) & (d >= -1e300);  // all ones or none
      const Doubles counted = (Doubles)((Longs)d & finite);
      sums[v] += counted;
      squares[v] += counted * counted;
      counts[v] -= finite;
    }
  };
  double sum = 0, square = 0, n = 0;
  std::size_t done = 0;
  if constexpr (kByRuns) {
    for (; done + kRunBytes <= whole; done += kRunBytes) {
      const RunSums run = Type::run(data.data() + done, static_cast<float>(origin));
      if (run.are_good()) {
        sum += run.sum;
        square += run.squares;
        n += kRunBytes / Type::kBytes;
      } else {
        for (std::size_t at = 0; at < kRunBytes; at += kStep) add(data.data() + done + at);
      }
    }
  }
  for (; done < whole; done += kStep) add(data.data() + done);
  add(last);
  for (std::size_t v = 0; v < kVectors; ++v)
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sum += sums[v][lane];
      square += squares[v][lane];
      n += static_cast<double>(counts[v][lane]);
    }
  if (n < 2) return 0;
  const double variance = (square - sum * sum / n) / n;
  if constexpr (kByRuns)
    if (!(square <= kWellPlaced * n * variance)) return deviation<Type, false>(data);
  return variance > 0 && std::isfinite(variance) ? std::sqrt(variance) : 0;
}

ACCDP_INLINE double deviation_of(Datatype type, ConstBytes data) {
  switch (type) {
    case Datatype::kF16: return deviation<F16>(data);
    case Datatype::kBF16: return deviation<BF16>(data);
    case Datatype::kF32: return deviation<F32>(data);
    case Datatype::kF64: return deviation<F64>(data);
    default: return 0;
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) double deviation_avx2(Datatype type, ConstBytes data) {
  return deviation_of(type, data);
}
const bool kHasAvx2 = __builtin_cpu_supports("avx2");
#endif

}  // namespace

double standard_deviation(Datatype type, ConstBytes data) noexcept {
#if defined(__x86_64__)
  if (kHasAvx2) return deviation_avx2(type, data);
#endif
  return deviation_of(type, data);
}

}  // namespace accdp
