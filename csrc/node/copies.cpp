#include "node/copies.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "base/rounding.hpp"

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
// Below, memcpy uses vectors itself, everywhere.
constexpr std::size_t kLeastByLines = 2 << 10;

/// body(to, from) for each whole line of `to`; memcpy for what is before and after.
template <class Body>
[[gnu::always_inline]] inline void for_lines(std::byte* to, const std::byte* from, std::size_t bytes, Body body) {
  const std::size_t head = std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) body(to, from);
  std::memcpy(to, from, bytes);
}

struct Line {
  __m128i parts[4];
};

[[gnu::always_inline]] inline Line load(const std::byte* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  return {
      {_mm_loadu_si128(source), _mm_loadu_si128(source + 1), _mm_loadu_si128(source + 2), _mm_loadu_si128(source + 3)}};
}

const bool kIsAmd = __builtin_cpu_is("amd");
#endif

}  // namespace

bool is_past_own_caches(std::size_t bytes) noexcept { return bytes > kOwnBytes; }

bool is_past_shared_cache(std::size_t bytes) noexcept {
  if (bytes <= kLeastSharedBytes) return false;
  static const std::size_t most = shared_bytes();
  return bytes > most;
}

#if defined(__x86_64__)
void copy_lines(void* to, const void* from, std::size_t bytes) noexcept {
  if (!kIsAmd || bytes < kLeastByLines) {
    if (bytes) std::memcpy(to, from, bytes);
    return;
  }
  for_lines(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes,
            [](std::byte* line, const std::byte* source) {
              const Line loaded = load(source);
              for (int i = 0; i < 4; ++i) _mm_store_si128(reinterpret_cast<__m128i*>(line) + i, loaded.parts[i]);
            });
}

void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes == 0) return;
  for_lines(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes,
            [](std::byte* line, const std::byte* source) {
              const Line loaded = load(source);
              for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(line) + i, loaded.parts[i]);
            });
  _mm_sfence();  // such stores are in no order with others, not with what tells another thread of them either
}

bool has_stores_past_caches() noexcept { return true; }
#else
void copy_lines(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes) std::memcpy(to, from, bytes);
}
void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept { copy_lines(to, from, bytes); }
bool has_stores_past_caches() noexcept { return false; }
#endif

void copy_out(void* to, const void* from, std::size_t bytes, bool past_caches) noexcept {
  (past_caches ? copy_past_caches : copy_lines)(to, from, bytes);
}

}  // namespace accdp
