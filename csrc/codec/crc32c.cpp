#include "codec/crc32c.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace accdp {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // bits reversed: the lowest bit is the oldest

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? kPolynomial : 0);
    table[i] = value;
  }
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

/// What a checksum becomes once zero bytes have followed it.
std::uint32_t followed_by_zeros(std::uint32_t crc, std::size_t bytes) {
  for (; bytes > 0; --bytes) crc = kTable[crc & 255] ^ (crc >> 8);
  return crc;
}
/// The same for a run of them; a checksum is linear.
struct RunShift {
  std::uint32_t table[4][256]{};
  RunShift() {
    for (int bit = 0; bit < 32; ++bit) {
      const std::uint32_t of_bit = followed_by_zeros(std::uint32_t{1} << bit, kCrcRun);
      for (std::uint32_t b = 0; b < 256; ++b)
        if (b >> bit % 8 & 1) table[bit / 8][b] ^= of_bit;
    }
  }
  std::uint32_t operator()(std::uint32_t crc) const {
    return table[0][crc & 255] ^ table[1][crc >> 8 & 255] ^ table[2][crc >> 16 & 255] ^ table[3][crc >> 24];
  }
};

}  // namespace

std::uint32_t crc32c_joined(std::span<const std::uint32_t> runs, std::size_t bytes, std::uint32_t seed) noexcept {
  static const RunShift shift;
  for (std::uint32_t run : runs) {
    seed = (bytes >= kCrcRun ? shift(seed) : followed_by_zeros(seed, bytes)) ^ run;
    bytes -= std::min(bytes, kCrcRun);
  }
  return seed;
}

std::array<std::uint32_t, 16> crc32c_nibbles() noexcept {
  std::array<std::uint32_t, 16> table;
  for (std::uint32_t i = 0; i < 16; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 4; ++bit) table[i] = (table[i] >> 1) ^ (table[i] & 1 ? kPolynomial : 0);
  }
  return table;
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
