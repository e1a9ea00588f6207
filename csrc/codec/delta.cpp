#include "codec/delta.hpp"

#include <cstring>
#include <type_traits>

namespace accdp {
namespace {

bool is_float(Datatype type) {
  switch (type) {
    case Datatype::kF16:
    case Datatype::kBF16:
    case Datatype::kF32:
    case Datatype::kF64:
    case Datatype::kC64:
    case Datatype::kC128: return true;
    default: return false;
  }
}

/// All ones if the uppermost bit is set.
template <class T>
T sign_of(T bits) {
  return static_cast<T>(T{0} - static_cast<T>(bits >> (8 * sizeof(T) - 1)));
}

/// Sign and magnitude to a two's complement number of the same order, -0 directly below +0; its own inverse.
template <bool kFloat, class T>
T ordered(T bits) {
  if constexpr (!kFloat) return bits;
  return static_cast<T>(bits ^ (sign_of(bits) >> 1));
}

template <class T>
T element(ConstBytes data, std::size_t i) {
  T value;
  std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
  return value;
}

// Every element is read before it is written and depends on no other: `out` may be an input.
template <bool kFloat, class T>
void encode(ConstBytes in, ConstBytes reference, Bytes out) {
  const std::size_t count = out.size() / sizeof(T);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const auto difference =
        static_cast<T>(ordered<kFloat>(element<T>(in, i)) - ordered<kFloat>(element<T>(reference, i)));
    const auto zigzag = static_cast<T>(static_cast<T>(difference << 1) ^ sign_of(difference));
    std::memcpy(out.data() + i * sizeof(T), &zigzag, sizeof(T));
  }
}

template <bool kFloat, class T>
void decode(ConstBytes delta, ConstBytes reference, Bytes out) {
  const std::size_t count = out.size() / sizeof(T);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const T zigzag = element<T>(delta, i);
    const auto difference = static_cast<T>((zigzag >> 1) ^ static_cast<T>(T{0} - (zigzag & 1)));
    const T value = ordered<kFloat>(static_cast<T>(ordered<kFloat>(element<T>(reference, i)) + difference));
    std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
  }
}

/// Calls `with` with the unsigned type and whether the datatype is a float.
template <class With>
void dispatch(Datatype type, With&& with) {
  constexpr auto kYes = std::true_type{};
  constexpr auto kNo = std::false_type{};
  switch (delta_type(type)) {
    case Datatype::kU8: return with(std::uint8_t{}, kNo);
    case Datatype::kU16: return is_float(type) ? with(std::uint16_t{}, kYes) : with(std::uint16_t{}, kNo);
    case Datatype::kU32: return is_float(type) ? with(std::uint32_t{}, kYes) : with(std::uint32_t{}, kNo);
    default: return is_float(type) ? with(std::uint64_t{}, kYes) : with(std::uint64_t{}, kNo);
  }
}

}  // namespace

Datatype delta_type(Datatype type) noexcept {
  const std::size_t parts = is_complex(type) ? 2 : 1;
  switch (element_bytes(type) / parts) {
    case 1: return Datatype::kU8;
    case 2: return Datatype::kU16;
    case 4: return Datatype::kU32;
    default: return Datatype::kU64;
  }
}

void delta_encode(Datatype type, ConstBytes in, ConstBytes reference, Bytes out) {
  dispatch(type, [&](auto word, auto is_float) { encode<is_float.value, decltype(word)>(in, reference, out); });
}

void delta_decode(Datatype type, ConstBytes delta, ConstBytes reference, Bytes out) {
  dispatch(type, [&](auto word, auto is_float) { decode<is_float.value, decltype(word)>(delta, reference, out); });
}

}  // namespace accdp
