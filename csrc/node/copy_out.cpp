#include "node/copy_out.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace accdp {
namespace {

#if defined(__x86_64__)
// Of the last cache, which ranks share with whatever else runs on the processor. Measured with 480 MiB: writing past it
// takes a tenth to a half longer below 80 to 100 MiB, and up to three tenths less above (docs/algorithms.md).
constexpr std::size_t kOurShare = 5;
// Where nothing is known of it: ranks' L2 caches.
constexpr std::size_t kLeastBytes = 8 << 20;
constexpr std::size_t kLine = 64;

std::size_t read_bytes_that_stay() {
  // Not sysconf(), which on some processors tells all caches of a package together.
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  std::size_t kib = 0;
  file >> kib;  // "32768K"
  return std::max(kib * 1024 / kOurShare, kLeastBytes);
}

bool stays_in_caches(std::size_t of_bytes) {
  if (of_bytes <= kLeastBytes) return true;
  static const std::size_t most = read_bytes_that_stay();
  return of_bytes <= most;
}

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  const std::size_t head = std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* line = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  std::memcpy(to, from, bytes);
  _mm_sfence();  // such stores are in no order with others, not with what tells another thread of them either
}
#endif

}  // namespace

void copy_out(void* to, const void* from, std::size_t bytes, [[maybe_unused]] std::size_t of_bytes) noexcept {
#if defined(__x86_64__)
  if (!stays_in_caches(of_bytes))
    return copy_past_caches(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
#endif
  if (bytes) std::memcpy(to, from, bytes);
}

}  // namespace accdp
