#include "node/pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace accdp {

std::size_t pages_ahead(std::size_t there, std::size_t used, std::size_t bytes) noexcept {
  constexpr std::size_t kLeast = 16 << 10, kMost = 256 << 10;
  return std::min(bytes, std::max(used, there + std::clamp(there, kLeast, kMost)));
}

void make_pages(std::byte* from, std::size_t bytes) noexcept {
  static const std::size_t page = sysconf(_SC_PAGESIZE);
  const std::size_t before = reinterpret_cast<std::uintptr_t>(from) % page;
  madvise(from - before, before + bytes, MADV_POPULATE_WRITE);
}

}  // namespace accdp
