#include "node/process.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace accdp {
namespace {

/// What /proc says of a process, from its state on; empty where it says nothing, with errno.
std::string stat_of(int pid) {
  const int fd = open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  char line[1024];
  const ssize_t length = read(fd, line, sizeof line);
  const int error = errno;
  close(fd);
  errno = length == 0 ? ESRCH : error;
  if (length <= 0) return "";
  const std::string text(line, length);
  // The second field is the program's name in parentheses and may contain anything.
  const auto name_end = text.rfind(')');
  errno = ESRCH;
  return name_end == std::string::npos ? "" : text.substr(name_end + 2);
}

}  // namespace

bool process_lives(int pid, std::uint64_t start_time) {
  const std::string stat = stat_of(pid);
  // Anything else is this process's own trouble, with its file descriptors for one.
  if (stat.empty()) return errno != ENOENT && errno != ESRCH;
  if (stat[0] == 'Z' || stat[0] == 'X') return false;
  const char* at = stat.c_str();
  for (int field = 3; field < 22; ++field) {
    at = std::strchr(at, ' ');
    if (!at++) return true;
  }
  return start_time == 0 || std::strtoull(at, nullptr, 10) == start_time;
}

bool process_is_stopped(int pid) { return stat_of(pid).starts_with('T'); }

}  // namespace accdp
