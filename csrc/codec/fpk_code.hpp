#pragma once
#include <cstddef>
#include <cstdint>

#include "base/types.hpp"
#include "codec/block_ops.hpp"
#include "codec/host_and_device.hpp"

// How fpk's blocks of floats choose their code: one function for the host and for the device, so that both write the
// same bytes.

namespace accdp {

/// Where the parts of an element stand among the byte rows.
struct FpkLayout {
  int width;          // bytes of an element
  int exponent_bits;  // 5: float16, whose sign and upper mantissa bits are three planes of bits
  int rest_rows;      // rows 0 .. rest_rows - 1 are the rest, the last row of the element is the exponents
  int rest_planes;

  std::size_t exponents() const { return static_cast<std::size_t>(width - 1) * kRow; }
  /// Bytes of the rest planes whose bits are set.
  ACCDP_HOST_AND_DEVICE std::size_t rest_bytes(unsigned present) const {
    std::size_t bytes = 0;
    for (int i = 0; i < rest_rows + rest_planes; ++i)
      if (present >> i & 1) bytes += i < rest_rows ? kRow : kRow / 8;
    return bytes;
  }
};
inline constexpr FpkLayout kFpkF16 = {2, 5, 1, 3}, kFpkBF16 = {2, 8, 1, 0}, kFpkF32 = {4, 8, 3, 0};

inline constexpr std::uint8_t kFpkZeroCode =
    0x80;  // in FpkHeader::planes: the last code before the escape is exponent 0
inline constexpr int kMostCodePlanes = 4;
inline constexpr int kMostBelowLargest = 3;

/// How exponents become codes of `planes` bits. More than kMostCodePlanes: the exponents themselves.
struct FpkCode {
  int planes = 0;
  std::uint8_t base = 0;
  bool has_zero = false;
  std::size_t escapes = 0;

  ACCDP_HOST_AND_DEVICE bool is_plain() const { return planes > kMostCodePlanes; }
  ACCDP_HOST_AND_DEVICE CodeRange range() const {
    const auto escape = static_cast<std::uint8_t>((1 << planes) - 1);
    return {base, static_cast<std::uint8_t>(has_zero ? escape - 1 : escape), escape, has_zero};
  }
};

/// The cheapest way; of equally cheap ones the first, so that every implementation finds the same.
ACCDP_HOST_AND_DEVICE inline FpkCode choose_fpk_code(const CodeCounts& counts, std::uint8_t largest,
                                                     int exponent_bits) {
  if (counts.at_least[1] == 0) return {0, largest, false, 0};
  constexpr std::size_t kPlane = kRow / 8;
  // An offer is one number, bytes above choice, so that their minimum needs no branch.
  const auto offer = [](std::size_t bytes, int planes, int below, bool has_zero) {
    return static_cast<std::uint32_t>(bytes) << 8 | static_cast<std::uint32_t>(planes << 4 | below << 1 | has_zero);
  };
  const auto cheaper = [](std::uint32_t a, std::uint32_t b) { return b < a ? b : a; };
  std::uint32_t best = offer(static_cast<std::size_t>(exponent_bits) * kPlane, 0, 0, false);
  for (int planes = 1; planes <= kMostCodePlanes; ++planes) {
    const std::size_t plane_bytes = static_cast<std::size_t>(planes) * kPlane;
    // with 15 codes, a base below the largest gains nothing worth the search
    const int wanted = planes == kMostCodePlanes ? 0 : kMostBelowLargest;
    const int most_below = wanted < largest ? wanted : largest;
    for (int below = 0; below <= most_below; ++below) {
      const std::size_t above = kRow - counts.at_least[below];
      const int first = below + (1 << planes) - 1;  // the first distance that has no code
      best = cheaper(best, offer(plane_bytes + above + counts.at_least[first], planes, below, false));
      if (counts.zeros == 0 || largest < first - 1) continue;  // no zeros, or they have a code anyway
      best = cheaper(best, offer(plane_bytes + above + counts.at_least[first - 1] - counts.zeros, planes, below, true));
    }
  }
  const int planes = static_cast<int>(best >> 4 & 15), below = static_cast<int>(best >> 1 & 7);
  if (planes == 0) return {exponent_bits, 0, false, 0};
  return {planes, static_cast<std::uint8_t>(largest - below), (best & 1) != 0,
          (best >> 8) - static_cast<std::size_t>(planes) * kPlane};
}

}  // namespace accdp
