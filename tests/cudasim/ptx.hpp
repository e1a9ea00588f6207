#pragma once
// What instructions of PTX do, for the C++ that ptx.py makes of kernels. Registers hold bits; an instruction reads them
// as its type says. What a GPU would not do and the host does ends the program: access to memory that is not aligned to
// its size, or that nobody allocated.
#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/float16.hpp"

namespace ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using f16 = accdp::Float16;
using f32 = float;
using f64 = double;
using pred = bool;

/// What registers hold before they are written.
constexpr u16 kUnset = 0xA5C3;

template <class T>
using Bits = std::conditional_t<sizeof(T) == 1, u8,
                                std::conditional_t<sizeof(T) == 2, u16, std::conditional_t<sizeof(T) == 4, u32, u64>>>;
template <class T>
constexpr bool kFloat = std::is_floating_point_v<T> || std::same_as<T, f16>;

constexpr u64 number(long long value) { return static_cast<u64>(value); }
inline u64 address(const void* memory) { return reinterpret_cast<u64>(memory); }

/// A register's low bits as a T.
template <class T, class Register>
T as(Register bits) {
  if constexpr (kFloat<T>)
    return std::bit_cast<T>(static_cast<Bits<T>>(bits));
  else
    return static_cast<T>(bits);
}
/// A register that is wider than the value gets its sign, or zeros.
template <class Register, class T>
void set(Register& to, T value) {
  if constexpr (kFloat<T>)
    to = static_cast<Register>(std::bit_cast<Bits<T>>(value));
  else
    to = static_cast<Register>(value);
}

[[noreturn]] void give_up(const char* what, u64 at, std::size_t bytes);
template <class T>
u64 aligned(u64 at, int count) {
  const std::size_t bytes = sizeof(T) * static_cast<unsigned>(count);
  if (at % bytes != 0) give_up("not aligned", at, bytes);
  return at;
}

// Each checks an address of so many values that are taken at once, and gives it back.
void check_allocated(u64 at, std::size_t bytes);
void check_table(u64 at, std::size_t bytes);
/// In the device's memory.
template <class T>
u64 global(u64 at, int count) {
  check_allocated(at, sizeof(T) * static_cast<unsigned>(count));
  return aligned<T>(at, count);
}
/// In what nobody writes while the kernel runs (ld.global.nc): its tables.
template <class T>
u64 constant(u64 at, int count) {
  check_table(at, sizeof(T) * static_cast<unsigned>(count));
  return aligned<T>(at, count);
}
/// In what the thread has of its own: its kernel's arguments, and its stack.
struct Own {
  u64 first;
  std::size_t bytes;
};
template <class T, std::size_t n>
u64 own(u64 at, int count, const Own (&all)[n]) {
  const std::size_t bytes = sizeof(T) * static_cast<unsigned>(count);
  for (const Own& one : all)
    if (at >= one.first && at + bytes <= one.first + one.bytes) return aligned<T>(at, count);
  give_up("neither an argument nor on the stack", at, bytes);
}
template <class T>
T load(u64 at, int index) {
  Bits<T> bits;
  std::memcpy(&bits, reinterpret_cast<const Bits<T>*>(at) + index, sizeof(T));
  return as<T>(bits);
}
template <class T, class Register>
void store(u64 at, int index, Register value) {
  const auto bits = static_cast<Bits<T>>(value);
  std::memcpy(reinterpret_cast<Bits<T>*>(at) + index, &bits, sizeof(T));
}
inline u32 atomic_max(u64 at, u32 value) { return atomicMax(reinterpret_cast<u32*>(global<u32>(at, 1)), value); }

/// One of the parts of a register, the lowest first.
template <int parts, class T>
T part(T value, int index) {
  constexpr int kBits = 8 * static_cast<int>(sizeof(T)) / parts;
  return static_cast<T>(value >> (index * kBits) & ((u64{1} << kBits) - 1));
}
template <class T, class... Parts>
T join(Parts... parts) {
  T all = 0;
  int shift = 0;
  ((all |= static_cast<T>(static_cast<T>(parts) << shift), shift += 8 * static_cast<int>(sizeof(T) / sizeof...(parts))),
   ...);
  return all;
}

/// What a GPU makes of every NaN that it computes in float32, and in float16 from that. The host keeps an operand's
/// bits.
template <class T>
T computed(T value) {
  if constexpr (std::same_as<T, f32>)
    return std::isnan(value) ? std::bit_cast<f32>(0x7fffffffU) : value;
  else if constexpr (std::same_as<T, f16>)
    return std::isnan(static_cast<float>(value)) ? std::bit_cast<f16>(u16{0x7fff}) : value;
  else
    return value;
}

/// Integers wrap: their sums and products are those of numbers without a sign.
template <class T, class Apply>
T wrapped(T a, T b, Apply apply) {
  if constexpr (kFloat<T>)
    return computed(apply(a, b));
  else
    return static_cast<T>(apply(static_cast<u64>(a), static_cast<u64>(b)));
}
template <class T>
T add_(T a, T b) {
  return wrapped(a, b, [](auto x, auto y) { return x + y; });
}
template <class T>
T sub_(T a, T b) {
  return wrapped(a, b, [](auto x, auto y) { return x - y; });
}
template <class T>
T mul_(T a, T b) {
  return wrapped(a, b, [](auto x, auto y) { return x * y; });
}
template <class T>
T mul_lo_(T a, T b) {
  return mul_(a, b);
}
template <class T>
T mad_lo_(T a, T b, T c) {
  return add_(mul_(a, b), c);
}
template <class T>
auto mul_wide(T a, T b) {
  using Wide = std::conditional_t<std::is_signed_v<T>, std::conditional_t<sizeof(T) == 2, s32, s64>,
                                  std::conditional_t<sizeof(T) == 2, u32, u64>>;
  return static_cast<Wide>(static_cast<Wide>(a) * static_cast<Wide>(b));
}
template <class T>
T div_(T a, T b) {
  if constexpr (!kFloat<T>)
    if (b == 0) {
      std::fprintf(stderr, "ptx: division by zero\n");
      std::abort();
    }
  return computed(static_cast<T>(a / b));
}
inline f32 rcp_(f32 a) { return computed(1.0F / a); }
template <class T>
T neg_(T a) {
  if constexpr (kFloat<T>)
    return -a;
  else
    return sub_(T{0}, a);
}
template <class T>
T abs_(T a) {
  static_assert(kFloat<T>);
  return std::fabs(a);
}
template <class T>
T min_(T a, T b) {
  static_assert(!kFloat<T>);
  return b < a ? b : a;
}
template <class T>
T max_(T a, T b) {
  static_assert(!kFloat<T>);
  return a < b ? b : a;
}
template <class T>
T not_(T a) {
  if constexpr (std::same_as<T, bool>)
    return !a;
  else
    return static_cast<T>(~a);
}

/// Counts beyond the width shift all out.
template <class T>
T shl_(T a, u32 count) {
  return count < 8 * sizeof(T) ? static_cast<T>(static_cast<u64>(a) << count) : T{0};
}
template <class T>
T shr_(T a, u32 count) {
  if (count < 8 * sizeof(T)) return static_cast<T>(a >> count);
  return std::is_signed_v<T> && a < 0 ? static_cast<T>(-1) : T{0};
}
template <class T>
u32 popc_(T a) {
  return static_cast<u32>(std::popcount(a));
}
template <class T>
u32 clz_(T a) {
  return static_cast<u32>(std::countl_zero(a));
}
/// Bytes of two words by four selectors of four bits, the last of which repeats a byte's sign.
inline u32 prmt_(u32 a, u32 b, u32 selectors) {
  const u64 bytes = u64{b} << 32 | a;
  u32 made = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 selector = selectors >> (4 * i) & 15;
    u32 byte = static_cast<u32>(bytes >> (8 * (selector & 7))) & 255;
    if (selector & 8) byte = byte & 128 ? 255 : 0;
    made |= byte << (8 * i);
  }
  return made;
}
/// A field of a word as a number: of signed ones the highest bit that it has is repeated.
template <class T>
T bfe_(T from, T first, T bits) {
  constexpr u32 kWidth = 8 * sizeof(T);
  const u32 at = static_cast<u32>(first) & 255, count = static_cast<u32>(bits) & 255;
  const u32 highest = std::min(at + count, kWidth) - 1;
  u64 field = std::is_signed_v<T> && count > 0 && (from >> highest & 1) ? ~u64{0} : 0;
  for (u32 i = 0; i < count && i < kWidth && at + i < kWidth; ++i)
    field = (field & ~(u64{1} << i)) | static_cast<u64>(from >> (at + i) & 1) << i;
  return static_cast<T>(field);
}
/// The lowest bits of one word put into another.
template <class T>
T bfi_(T from, T into, T first, T bits) {
  const u32 at = first & 255, count = bits & 255;
  const T lowest = count < 8 * sizeof(T) ? static_cast<T>((T{1} << count) - 1) : static_cast<T>(~T{0});
  const T mask = shl_(lowest, at);
  return static_cast<T>((into & ~mask) | (shl_(from, at) & mask));
}

template <class To, class From>
To cvt(From value) {
  static_assert(!(kFloat<From> && !kFloat<To>), "a float to an integer: say how it is rounded");
  return computed(static_cast<To>(value));
}
template <class T>
bool compare_eq(T a, T b) {
  return a == b;
}
/// Of numbers: whether they are told apart, which NaN is from none.
template <class T>
bool compare_ne(T a, T b) {
  if constexpr (kFloat<T>)
    return a < b || a > b;
  else
    return a != b;
}
template <class T>
bool compare_lt(T a, T b) {
  return a < b;
}
template <class T>
bool compare_le(T a, T b) {
  return a <= b;
}
template <class T>
bool compare_gt(T a, T b) {
  return a > b;
}
template <class T>
bool compare_ge(T a, T b) {
  return a >= b;
}
template <class T>
bool compare_nan(T a, T b) {
  return std::isnan(a) || std::isnan(b);
}
// With a "u" behind: true of NaN, too.
template <class T>
bool compare_neu(T a, T b) {
  return a != b;
}
template <class T>
bool compare_ltu(T a, T b) {
  return !(a >= b);
}
template <class T>
bool compare_leu(T a, T b) {
  return !(a > b);
}
template <class T>
bool compare_gtu(T a, T b) {
  return !(a <= b);
}
template <class T>
bool compare_geu(T a, T b) {
  return !(a < b);
}

/// Memory that kernels of a file read although nobody allocated it.
struct Table {
  Table(const unsigned char* bytes, std::size_t count);
};

/// One kernel, under "sm_90" or the like and the name that the host's compiler gives it, with the sizes of its
/// parameters. No thread: why not.
struct Registered {
  Registered(const char* name, std::vector<std::size_t> sizes, cudasim::Thread thread, const char* why_not);
};

}  // namespace ptx
