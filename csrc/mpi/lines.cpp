#include "mpi/lines.hpp"

#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <utility>

namespace accdp::mpi {
namespace {

struct Line {
  int fd = -1;
  std::atomic<long> looked_at = 0;  // of the clock below, 0 before the first look; -1 once it was seen to be broken
};

std::vector<Line>& lines() {
  static std::vector<Line> by_world_rank;
  return by_world_rank;
}

bool is_broken(int fd) noexcept {
  std::byte nothing;
  const ssize_t got = recv(fd, &nothing, sizeof nothing, MSG_DONTWAIT | MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

/// Of the clock that goes on with the kernel's ticks.
long coarse_now() noexcept {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec * 1'000'000'000L + now.tv_nsec;
}

}  // namespace

void watch_lines(const std::vector<int>& fds) {
  std::vector<Line> watched(fds.size());
  for (std::size_t rank = 0; rank < fds.size(); ++rank) watched[rank].fd = fds[rank];
  lines() = std::move(watched);
}

bool has_line(int world_rank) noexcept { return !lines().empty() && lines()[world_rank].fd >= 0; }
bool has_ended(int world_rank) noexcept { return has_line(world_rank) && is_broken(lines()[world_rank].fd); }
bool had_ended(int world_rank) noexcept {
  if (!has_line(world_rank)) return false;
  Line& line = lines()[world_rank];
  const long last = line.looked_at.load(std::memory_order_relaxed);
  if (last < 0) return true;
  const long now = coarse_now();
  if (now == last) return false;
  const bool is_over = is_broken(line.fd);
  line.looked_at.store(is_over ? -1 : now, std::memory_order_relaxed);
  return is_over;
}

void break_lines() noexcept {
  for (const Line& line : lines())
    if (line.fd >= 0) shutdown(line.fd, SHUT_RDWR);
}

bool has_any_ended() noexcept {
  return std::ranges::any_of(lines(), [](const Line& line) { return line.fd >= 0 && is_broken(line.fd); });
}

}  // namespace accdp::mpi
