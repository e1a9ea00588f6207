#pragma once
// CRC-32C as what it is: the remainder of a polynomial over GF(2). What processors without its instruction need, and
// what joins checksums of parts: a part counts times x^(8n), where n bytes follow it. Evaluated by the compiler, in the
// host and in kernels.
#include <cstddef>
#include <cstdint>

#include "codec/host_and_device.hpp"

namespace accdp::crc {

inline constexpr std::uint32_t kPolynomial = 0x82f63b78;  // bits reversed, as all here: the highest one is x^0
inline constexpr std::uint32_t kOne = std::uint32_t{1} << 31;

ACCDP_HOST_AND_DEVICE constexpr std::uint32_t times_x(std::uint32_t a) { return (a >> 1) ^ (a & 1 ? kPolynomial : 0); }

ACCDP_HOST_AND_DEVICE constexpr std::uint32_t times(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = kOne; bit != 0; bit >>= 1, b = times_x(b)) product ^= a & bit ? b : 0;
  return product;
}

/// x^(8 bytes): what a remainder is multiplied by as so many zero bytes follow.
constexpr std::uint32_t power_of_bytes(std::size_t bytes) {
  std::uint32_t power = kOne, square = kOne >> 8;
  for (; bytes != 0; bytes >>= 1, square = times(square, square))
    if (bytes & 1) power = times(power, square);
  return power;
}

/// The remainder once this byte has followed, too.
ACCDP_HOST_AND_DEVICE constexpr std::uint32_t followed_by(std::uint32_t remainder, std::byte byte) {
  remainder ^= static_cast<std::uint32_t>(byte);
  for (int bit = 0; bit < 8; ++bit) remainder = times_x(remainder);
  return remainder;
}

/// Multiplication by power_of_bytes() of a fixed number, by a table for each four bits. A table is of 64 bytes: what
/// the threads of a warp look up in it at once lies in one line of a cache.
struct alignas(64) Shift {
  std::uint32_t of[8][16] = {};

  constexpr explicit Shift(std::size_t bytes) {
    const std::uint32_t power = power_of_bytes(bytes);
    for (std::uint32_t i = 0; i < 8; ++i)
      for (std::uint32_t four = 0; four < 16; ++four) of[i][four] = times(four << 4 * i, power);
  }
  ACCDP_HOST_AND_DEVICE constexpr std::uint32_t operator()(std::uint32_t remainder) const {
    std::uint32_t product = 0;
    for (int i = 0; i < 8; ++i, remainder >>= 4) product ^= of[i][remainder & 15];
    return product;
  }
};

}  // namespace accdp::crc
