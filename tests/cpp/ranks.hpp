#pragma once
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "coll/group.hpp"

/// Runs `body` in `size` child processes that form one group on one node; true if all ended well.
inline bool run_ranks(int size, const std::function<void(accdp::Group&)>& body) {
  struct Meeting {
    std::atomic<int> arrived;
    std::atomic<int> pids[16];
  };
  auto* meeting =
      static_cast<Meeting*>(mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  CHECK(meeting != MAP_FAILED);
  const int segment = memfd_create("accdp-test", MFD_CLOEXEC);
  CHECK(segment >= 0);
  CHECK(ftruncate(segment, static_cast<off_t>(accdp::Board::segment_bytes(size))) == 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    try {
      meeting->pids[rank] = getpid();
      meeting->arrived++;
      while (meeting->arrived < size) usleep(100);
      std::vector<accdp::Peer> peers;
      for (int r = 0; r < size; ++r) peers.push_back({"host", meeting->pids[r], 0, 0});
      accdp::Group group("test", rank, peers, size > 1 ? segment : -1, 30, nullptr);
      body(group);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d of %d: %s\n", rank, size, error.what());
      std::_Exit(1);
    }
    std::exit(0);  // with the leak check of the sanitizer
  }
  bool good = true;
  for (pid_t child : children) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  close(segment);
  munmap(meeting, sizeof(Meeting));
  return good;
}
