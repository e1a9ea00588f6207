#pragma once
// For ThreadSanitizer, which knows memory by its address: ranks that are threads of one process, and would each map the
// memory of their node at an address of its own, here get the same one. So it sees whether what one rank writes there
// and another reads is ordered by what they say to each other, as processors with weaker order than x86's need it.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <utility>

namespace one_mapping {

struct Mapping {
  void* address;
  std::size_t bytes;
  int users;
};
struct Table {
  std::mutex mutex;
  std::map<std::pair<dev_t, ino_t>, Mapping> of_file;
};
inline Table& table() {
  static auto* const it = new Table;
  return *it;
}

/// The sanitizer's own, once that is set up; before, it calls here itself.
using Map = void* (*)(void*, std::size_t, int, int, int, off_t);
using Unmap = int (*)(void*, std::size_t);
inline Map map = nullptr;
inline Unmap unmap = nullptr;
[[gnu::constructor]] inline void find_next() {
  map = reinterpret_cast<Map>(dlsym(RTLD_NEXT, "mmap"));
  unmap = reinterpret_cast<Unmap>(dlsym(RTLD_NEXT, "munmap"));
}

}  // namespace one_mapping

extern "C" [[gnu::no_sanitize_thread]] void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd,
                                                  off_t offset) noexcept {
  using namespace one_mapping;
  if (!map) return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
  struct stat file{};
  if (!(flags & MAP_SHARED) || fd < 0 || fstat(fd, &file) != 0)
    return map(address, bytes, protection, flags, fd, offset);
  std::lock_guard lock(table().mutex);
  const auto [found, is_new] = table().of_file.try_emplace({file.st_dev, file.st_ino}, Mapping{nullptr, bytes, 0});
  Mapping& shared = found->second;
  if (is_new) shared.address = map(address, bytes, protection, flags, fd, offset);
  ++shared.users;
  return shared.address;
}

extern "C" [[gnu::no_sanitize_thread]] int munmap(void* address, std::size_t bytes) noexcept {
  using namespace one_mapping;
  if (!unmap) return static_cast<int>(syscall(SYS_munmap, address, bytes));
  std::lock_guard lock(table().mutex);
  for (auto it = table().of_file.begin(); it != table().of_file.end(); ++it) {
    if (it->second.address != address) continue;
    if (--it->second.users > 0) return 0;
    table().of_file.erase(it);
    break;
  }
  return unmap(address, bytes);
}
