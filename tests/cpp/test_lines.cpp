// What lines tell of ranks, and that asking before every message costs no call of the system each time.
#include "mpi/lines.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <array>

#include "base/deadline.hpp"
#include "check.hpp"

using namespace accdp;

namespace {

int g_asked = 0;  // how often the kernel was

}  // namespace

/// In place of the system's, for lines.cpp, which is part of this program.
extern "C" ssize_t recv(int fd, void* data, std::size_t bytes, int flags) {
  ++g_asked;
  return recvfrom(fd, data, bytes, flags, nullptr, nullptr);
}

int main() {
  std::array<int, 2> first, second;
  CHECK(!mpi::has_line(1) && !mpi::has_ended(1) && !mpi::had_ended(1) && !mpi::has_any_ended());
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, first.data()) == 0);
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, second.data()) == 0);
  mpi::watch_lines({-1, first[0], second[0]});
  CHECK(!mpi::has_line(0) && mpi::has_line(1) && mpi::has_line(2) && g_asked == 0);
  for (int rank : {0, 1, 2}) CHECK(!mpi::has_ended(rank) && !mpi::had_ended(rank));
  CHECK(!mpi::has_any_ended());

  constexpr int kMessages = 100'000;
  g_asked = 0;
  const auto began = Clock::now();
  for (int i = 0; i < kMessages; ++i) CHECK(!mpi::had_ended(1));
  CHECK(g_asked <= 2 + (Clock::now() - began) / std::chrono::milliseconds(1) && g_asked < kMessages / 10);

  close(first[1]);
  CHECK(mpi::has_ended(1) && mpi::has_any_ended() && !mpi::has_ended(2));
  const Deadline soon(1.0);
  const timespec nap{0, 1'000'000};
  while (!mpi::had_ended(1) && !soon.passed()) nanosleep(&nap, nullptr);
  g_asked = 0;
  CHECK(mpi::had_ended(1) && g_asked == 0);
  CHECK(!mpi::had_ended(2));

  // A rank whose host has started again, or whose line was given up by TCP's keep-alive: an error, no end.
  const int listener = socket(AF_INET, SOCK_STREAM, 0), far = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  socklen_t size = sizeof at;
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  CHECK(bind(listener, address, size) == 0 && listen(listener, 1) == 0 && getsockname(listener, address, &size) == 0);
  CHECK(connect(far, address, size) == 0);
  mpi::watch_lines({-1, accept(listener, nullptr, nullptr), second[0]});
  CHECK(!mpi::has_ended(1));
  const linger at_once{1, 0};
  CHECK(setsockopt(far, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0 && close(far) == 0);
  const Deadline comes(5.0);
  while (!mpi::has_ended(1) && !comes.passed()) nanosleep(&nap, nullptr);
  CHECK(mpi::has_ended(1) && mpi::has_any_ended());

  mpi::break_lines();
  CHECK(mpi::has_ended(2));
}
