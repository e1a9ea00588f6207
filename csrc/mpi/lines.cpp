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
  std::byte nothing;
  const ssize_t got = recv(line, &nothing, sizeof nothing, MSG_DONTWAIT | MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace

void watch_lines(const std::vector<int>& fds) { lines() = fds; }

bool has_ended(int world_rank) noexcept { return has_line(world_rank) && is_broken(lines()[world_rank]); }
bool has_line(int world_rank) noexcept { return !lines().empty() && lines()[world_rank] >= 0; }

void break_lines() noexcept {
  for (const int line : lines())
    if (line >= 0) shutdown(line, SHUT_RDWR);
}

bool has_any_ended() noexcept {
  return std::ranges::any_of(lines(), [](int line) { return line >= 0 && is_broken(line); });
}

}  // namespace accdp::mpi
