#include "mpi/lines.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

namespace accdp::mpi {
namespace {

std::vector<int>& lines() {
  static std::vector<int> by_world_rank;
  return by_world_rank;
}

bool is_broken(int line) noexcept {
  if (line < 0) return false;
  std::byte nothing;
  const ssize_t got = recv(line, &nothing, sizeof nothing, MSG_DONTWAIT | MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace

void watch_lines(const std::vector<int>& fds) { lines() = fds; }

bool has_ended(int world_rank) noexcept { return !lines().empty() && is_broken(lines()[world_rank]); }

void break_lines() noexcept {
  for (const int line : lines())
    if (line >= 0) shutdown(line, SHUT_RDWR);
}

bool has_any_ended() noexcept { return std::ranges::any_of(lines(), is_broken); }

}  // namespace accdp::mpi
