#pragma once
#include <cstdint>
#include <type_traits>

#include "codec/delta.hpp"
#include "codec/host_and_device.hpp"

namespace accdp {

// One element of codec/delta.hpp: for the host's loops and the device's, so that both make the same differences. T: the
// unsigned integer of the element's width. W: what it is computed in, T itself or wider; not 8 bits on a device, where
// nvcc 13.0 shifts a byte with the sign of 16 bits (for GPUs before sm_100).

template <class T, class W>
constexpr W kElement = static_cast<T>(~T{0});  // the bits of a W that are the element's

/// All ones if the element's uppermost bit is set.
template <class T, class W>
ACCDP_HOST_AND_DEVICE W sign_of(W bits) {
  return static_cast<W>(W{0} - static_cast<W>(bits >> (8 * sizeof(T) - 1)));
}

/// Sign and magnitude to a two's complement number of the same order, -0 directly below +0; its own inverse.
template <bool kFloat, class T, class W>
ACCDP_HOST_AND_DEVICE W ordered(W bits) {
  if constexpr (!kFloat) return bits;
  return static_cast<W>(bits ^ (sign_of<T>(bits) & kElement<T, W> >> 1));
}

template <bool kFloat, class W, class T>
ACCDP_HOST_AND_DEVICE T delta_of(T value, T reference) {
  const auto difference =
      static_cast<W>((ordered<kFloat, T>(W{value}) - ordered<kFloat, T>(W{reference})) & kElement<T, W>);
  return static_cast<T>(static_cast<W>(difference << 1) ^ sign_of<T>(difference));
}

template <bool kFloat, class W, class T>
ACCDP_HOST_AND_DEVICE T value_of(T delta, T reference) {
  const auto difference = static_cast<W>((delta >> 1) ^ static_cast<W>(W{0} - W{static_cast<T>(delta & 1)}));
  return static_cast<T>(
      ordered<kFloat, T>(static_cast<W>((ordered<kFloat, T>(W{reference}) + difference) & kElement<T, W>)));
}

/// Calls `with` with the unsigned type and whether the datatype is a float.
template <class With>
void delta_dispatch(Datatype type, With&& with) {
  constexpr auto kYes = std::true_type{};
  constexpr auto kNo = std::false_type{};
  const bool is_float = is_real_float(type) || is_complex(type);
  switch (delta_type(type)) {
    case Datatype::kU8: return with(std::uint8_t{}, kNo);
    case Datatype::kU16: return is_float ? with(std::uint16_t{}, kYes) : with(std::uint16_t{}, kNo);
    case Datatype::kU32: return is_float ? with(std::uint32_t{}, kYes) : with(std::uint32_t{}, kNo);
    default: return is_float ? with(std::uint64_t{}, kYes) : with(std::uint64_t{}, kNo);
  }
}

}  // namespace accdp
