// Finds what nvcc made of a kernel by the name that its host function has in the program's table of symbols.
#include "ptx.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cinttypes>
#include <map>
#include <mutex>
#include <string>

#include "sim_state.hpp"

namespace {

struct Translated {
  std::vector<std::size_t> sizes;
  cudasim::Thread thread;
  const char* why_not;
  bool launched = false;
};
std::vector<cudasim::Range>& tables() {
  static std::vector<cudasim::Range> all;
  return all;
}
std::map<std::string, Translated>& translated() {
  static std::map<std::string, Translated> all;
  return all;
}

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "cudasim: CUDASIM_KERNELS: %s\n", why.c_str());
  std::abort();
}

/// Names of the functions in the file that this one is in, by address. dladdr() knows none of an unnamed namespace.
std::map<const void*, std::string> functions_around(const void* kernel) {
  Dl_info file{};
  if (!dladdr(kernel, &file)) stop("a kernel is in no file");
  std::FILE* symbols = popen(("nm -P '" + std::string(file.dli_fname) + "'").c_str(), "r");
  if (!symbols) stop("nm does not start");
  std::map<const void*, std::string> names;
  char line[4096], name[sizeof line];
  while (std::fgets(line, sizeof line, symbols)) {
    char kind = 0;
    std::uint64_t offset = 0;
    if (std::sscanf(line, "%4095s %c %" SCNx64, name, &kind, &offset) == 3 && std::strchr("tTwW", kind))
      names[static_cast<const char*>(file.dli_fbase) + offset] = name;
  }
  pclose(symbols);
  return names;
}

void note(const std::string& kernel) {
  const char* const path = std::getenv("CUDASIM_LAUNCHED");
  if (!path) return;
  std::FILE* list = std::fopen(path, "a");
  if (!list || std::fprintf(list, "%s\n", kernel.c_str()) < 0 || std::fclose(list) != 0)
    stop(std::string(path) + " cannot be written");
}

}  // namespace

void ptx::give_up(const char* what, u64 at, std::size_t bytes) {
  stop("a kernel's " + std::to_string(bytes) + " bytes at " + std::to_string(at) + " are " + what);
}

void ptx::check_allocated(u64 at, std::size_t bytes) {
  // What this thread saw last, for as long as nothing was given back: the books of the device have a lock.
  thread_local struct {
    cudasim::Range range;
    unsigned long releases;
  } seen[4];
  thread_local unsigned next = 0;
  const unsigned long releases = cudasim::state().releases;
  const auto holds = [&](const cudasim::Range& range) { return at >= range.first && at + bytes <= range.end; };
  for (const auto& [range, then] : seen)
    if (then == releases && holds(range)) return;
  const cudasim::Range found = cudasim::allocation_of(at);
  if (!holds(found)) give_up("not of one allocation", at, bytes);
  seen[next++ % std::size(seen)] = {found, releases};
}

void ptx::check_table(u64 at, std::size_t bytes) {
  for (const cudasim::Range& table : tables())
    if (at >= table.first && at + bytes <= table.end) return;
  give_up("not of one table", at, bytes);
}

ptx::Table::Table(const unsigned char* bytes, std::size_t count) {
  tables().push_back({address(bytes), address(bytes + count)});
}

ptx::Registered::Registered(const char* name, std::vector<std::size_t> sizes, cudasim::Thread thread,
                            const char* why_not) {
  if (!translated().emplace(name, Translated{std::move(sizes), thread, why_not}).second)
    stop("two kernels have the name " + std::string(name));
}

cudasim::Thread cudasim::thread_by_nvcc(const void* kernel, std::initializer_list<std::size_t> sizes) {
  static const char* const gpu = std::getenv("CUDASIM_KERNELS");
  if (!gpu) return nullptr;
  static std::mutex mutex;
  static std::map<const void*, std::string> names;
  const std::lock_guard lock(mutex);
  if (!names.contains(kernel)) names.merge(functions_around(kernel));
  const std::string name = gpu + (" " + names[kernel]);
  const auto found = translated().find(name);
  if (found == translated().end()) stop("there is no " + name);
  Translated& it = found->second;
  if (!it.thread) {
    std::printf("SKIP: %s: %s\n", name.c_str(), it.why_not);
    std::fflush(stdout);
    _exit(77);
  }
  if (it.sizes != std::vector(sizes)) stop("its parameters have other sizes: " + name);
  if (!it.launched) note(name);
  it.launched = true;
  return it.thread;
}
