#include "codec/byte_planes.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace accdp {
namespace {

// The loops are plain; always inlined, they are compiled for the instruction set of the function around them. The
// planes never overlap each other or the words, which is what ivdep tells the vectoriser.
#define ACCDP_INLINE inline __attribute__((always_inline))

template <class Word, bool kRotate, std::size_t... kPlane>
ACCDP_INLINE void split(const std::byte* in, std::size_t count, std::byte* planes, std::index_sequence<kPlane...>) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, in + i * sizeof word, sizeof word);
    if constexpr (kRotate) word = std::rotl(word, 1);
    ((planes[kPlane * count + i] = static_cast<std::byte>(word >> (8 * (sizeof word - 1 - kPlane)))), ...);
  }
}

template <class Word, bool kRotate, std::size_t... kPlane>
ACCDP_INLINE void merge(const std::byte* const* planes, std::size_t count, std::byte* out,
                        std::index_sequence<kPlane...>) {
  const std::byte* const plane[] = {planes[kPlane]...};
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    Word word = static_cast<Word>((... | (static_cast<Word>(plane[kPlane][i]) << (8 * (sizeof word - 1 - kPlane)))));
    if constexpr (kRotate) word = std::rotr(word, 1);
    std::memcpy(out + i * sizeof word, &word, sizeof word);
  }
}

/// Calls `use` with two values whose types say how wide a word is and whether it is rotated.
template <class Use>
ACCDP_INLINE void with_word(PlaneShape shape, Use use) {
  switch (shape.planes) {
    case 2:
      return shape.is_exponent_first ? use(std::uint16_t{}, std::true_type{}) : use(std::uint16_t{}, std::false_type{});
    case 4:
      return shape.is_exponent_first ? use(std::uint32_t{}, std::true_type{}) : use(std::uint32_t{}, std::false_type{});
    case 8: return use(std::uint64_t{}, std::false_type{});
    default: return use(std::uint8_t{}, std::false_type{});
  }
}

ACCDP_INLINE void split_any(PlaneShape shape, ConstBytes in, std::byte* planes) {
  with_word(shape, [&]<class Word, class Rotate>(Word, Rotate) __attribute__((always_inline)) {
    split<Word, Rotate::value>(in.data(), in.size() / sizeof(Word), planes, std::make_index_sequence<sizeof(Word)>());
  });
}
ACCDP_INLINE void merge_any(PlaneShape shape, const std::byte* const* planes, Bytes out) {
  with_word(shape, [&]<class Word, class Rotate>(Word, Rotate) __attribute__((always_inline)) {
    merge<Word, Rotate::value>(planes, out.size() / sizeof(Word), out.data(), std::make_index_sequence<sizeof(Word)>());
  });
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void split_avx2(PlaneShape shape, ConstBytes in, std::byte* planes) {
  split_any(shape, in, planes);
}
__attribute__((target("avx2"))) void merge_avx2(PlaneShape shape, const std::byte* const* planes, Bytes out) {
  merge_any(shape, planes, out);
}
const bool kHasAvx2 = __builtin_cpu_supports("avx2");
#endif

}  // namespace

PlaneShape plane_shape(Datatype type) noexcept {
  switch (type) {
    case Datatype::kBF16: return {2, true};
    case Datatype::kF32:
    case Datatype::kC64: return {4, true};
    case Datatype::kC128: return {8, false};
    default: return {element_bytes(type), false};
  }
}

void split_planes(PlaneShape shape, ConstBytes in, std::byte* planes) {
#if defined(__x86_64__)
  if (kHasAvx2) return split_avx2(shape, in, planes);
#endif
  split_any(shape, in, planes);
}

void merge_planes(PlaneShape shape, const std::byte* const* planes, Bytes out) {
#if defined(__x86_64__)
  if (kHasAvx2) return merge_avx2(shape, planes, out);
#endif
  merge_any(shape, planes, out);
}

}  // namespace accdp
