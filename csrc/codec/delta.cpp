#include "codec/delta.hpp"

#include <cstring>

#include "codec/delta_element.hpp"

namespace accdp {
namespace {

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
    const T delta = delta_of<kFloat, T>(element<T>(in, i), element<T>(reference, i));
    std::memcpy(out.data() + i * sizeof(T), &delta, sizeof(T));
  }
}

template <bool kFloat, class T>
void decode(ConstBytes delta, ConstBytes reference, Bytes out) {
  const std::size_t count = out.size() / sizeof(T);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const T value = value_of<kFloat, T>(element<T>(delta, i), element<T>(reference, i));
    std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
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
  delta_dispatch(type, [&](auto word, auto is_float) { encode<is_float.value, decltype(word)>(in, reference, out); });
}

void delta_decode(Datatype type, ConstBytes delta, ConstBytes reference, Bytes out) {
  delta_dispatch(type,
                 [&](auto word, auto is_float) { decode<is_float.value, decltype(word)>(delta, reference, out); });
}

}  // namespace accdp
