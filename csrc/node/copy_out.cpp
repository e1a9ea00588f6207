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

// Twice a large L2 cache.
constexpr std::size_t kOwnBytes = 4 << 20;
// Of the last cache, which ranks share with whatever else runs on the processor; the least where nobody tells its size.
constexpr std::size_t kOurShare = 5, kLeastSharedBytes = 8 << 20;

std::size_t shared_bytes() {
  // Not sysconf(), which on some processors tells all caches of a package together.
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  std::size_t kib = 0;
  file >> kib;  // "32768K"
  return std::max(kib * 1024 / kOurShare, kLeastSharedBytes);
}

#if defined(__x86_64__)
constexpr std::size_t kLine = 64;

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

bool is_past_own_caches(std::size_t bytes) noexcept { return bytes > kOwnBytes; }

bool is_past_shared_cache(std::size_t bytes) noexcept {
  if (bytes <= kLeastSharedBytes) return false;
  static const std::size_t most = shared_bytes();
  return bytes > most;
}

void copy_out(void* to, const void* from, std::size_t bytes, [[maybe_unused]] bool past_caches) noexcept {
#if defined(__x86_64__)
  if (past_caches) return copy_past_caches(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
#endif
  if (bytes) std::memcpy(to, from, bytes);
}

}  // namespace accdp
