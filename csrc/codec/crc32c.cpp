#include "codec/crc32c.hpp"

#include <array>
#include <cstring>

#include "codec/crc32c_algebra.hpp"
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace accdp {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) table[i] = crc::followed_by(0, static_cast<std::byte>(i));
  return table;
}
constexpr auto kTable = make_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint64_t run(const std::byte* at, std::size_t words, std::uint64_t crc) {
  for (std::size_t i = 0; i < words; ++i, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  return crc;
}

/// table[k][b]: what byte k of a checksum becomes once kLane zero bytes have followed it.
constexpr std::size_t kLane = 4096;
struct Shift {
  std::uint32_t table[4][256];
  /// A checksum is linear: 32 of them make the table, within microseconds of the first message.
  Shift() {
    static constexpr std::byte zeros[kLane]{};
    std::uint32_t of_bit[32];
    for (int bit = 0; bit < 32; ++bit)
      of_bit[bit] = static_cast<std::uint32_t>(run(zeros, kLane / 8, std::uint64_t{1} << bit));
    for (int k = 0; k < 4; ++k)
      for (std::uint32_t b = 0; b < 256; ++b) {
        table[k][b] = 0;
        for (int bit = 0; bit < 8; ++bit)
          if (b >> bit & 1) table[k][b] ^= of_bit[8 * k + bit];
      }
  }
  std::uint32_t operator()(std::uint32_t crc) const {
    return table[0][crc & 255] ^ table[1][crc >> 8 & 255] ^ table[2][crc >> 16 & 255] ^ table[3][crc >> 24];
  }
};

/// The instruction takes three cycles but can begin every cycle: three lanes at once, joined afterwards.
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(ConstBytes data, std::uint32_t seed) noexcept {
  static const Shift shift;
  const std::byte* at = data.data();
  std::size_t left = data.size();
  std::uint64_t crc = ~seed;
  for (; left >= 3 * kLane; left -= 3 * kLane, at += 3 * kLane) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      std::uint64_t words[3];
      for (int lane = 0; lane < 3; ++lane) std::memcpy(&words[lane], at + lane * kLane + i, 8);
      crc = _mm_crc32_u64(crc, words[0]);
      second = _mm_crc32_u64(second, words[1]);
      third = _mm_crc32_u64(third, words[2]);
    }
    crc = shift(static_cast<std::uint32_t>(crc)) ^ second;
    crc = shift(static_cast<std::uint32_t>(crc)) ^ third;
  }
  crc = run(at, left / 8, crc);
  at += left / 8 * 8;
  for (std::size_t i = 0; i < left % 8; ++i)
    crc = _mm_crc32_u8(static_cast<std::uint32_t>(crc), static_cast<std::uint8_t>(at[i]));
  return ~static_cast<std::uint32_t>(crc);
}
#endif

}  // namespace

std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second, std::size_t second_bytes) noexcept {
  return crc::times(first, crc::power_of_bytes(second_bytes)) ^ second;
}

std::uint32_t detail::crc32c_table(ConstBytes data, std::uint32_t seed) noexcept {
  std::uint32_t crc = ~seed;
  for (std::byte b : data) crc = kTable[(crc ^ static_cast<std::uint32_t>(b)) & 255] ^ (crc >> 8);
  return ~crc;
}

std::uint32_t crc32c(ConstBytes data, std::uint32_t seed) noexcept {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return crc32c_sse42(data, seed);
#endif
  return detail::crc32c_table(data, seed);
}

}  // namespace accdp
