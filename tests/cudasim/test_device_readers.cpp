// A process that ends waits until the others have read its memory: where their devices are late, not where they are
// gone, where the group has failed, in a process that was forked, or for longer than it was told.
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "device_checks.hpp"
#include "gpu/readers.hpp"

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kCount = 10'000;

struct Meeting {
  std::atomic<int> pids[2];
  std::atomic<bool> is_handed_over{false}, may_read{false}, has_ended{false};
};

std::unique_ptr<Group> group_of(Shared<Meeting>& meeting, int rank, int fd) {
  meeting->pids[rank] = getpid();
  while (!meeting->pids[0] || !meeting->pids[1]) usleep(100);
  const std::vector<Peer> peers{{"host", meeting->pids[0], 0, 0}, {"host", meeting->pids[1], 0, 0}};
  return std::make_unique<Group>("test", rank, peers, fd, 30, nullptr);
}

void bcast(const Gpu& gpu, const Array& data) {
  DeviceCollectives via = gpu.via();
  gpu.group.bcast(data.bytes(), kType, 0, -1, via);
}

/// Rank 1's device comes to the second of two broadcasts when it may.
void bcast_to_late_device(const Gpu& gpu, const Array& data, int rank, const std::atomic<bool>& may_read) {
  bcast(gpu, data);  // sets up the pool
  gpu.synchronize();
  if (rank == 1) cudasim::hold_reads(may_read);
  bcast(gpu, data);
}

/// Whether the process waits for a read that becomes possible meanwhile, until it has been done.
bool waits_for_the_read(std::atomic<bool>& may_read) {
  CHECK(!may_read);
  const std::jthread device([&] {
    usleep(200'000);
    may_read = true;
  });
  return await_readers(10s) && may_read;
}

/// Rank 0 broadcasts and ends while rank 1's device comes to the broadcast late. closes: it leaves the group before.
void a_late_device(bool closes, bool has_events) {
  Shared<Meeting> meeting;
  Segment segment(2);
  CHECK(fork_ranks(2, [&](int rank) {
    if (!has_events) cudasim::ignore_ipc_events(true);
    auto group = group_of(meeting, rank, segment.fd());
    auto gpu = std::make_unique<Gpu>(*group);
    bcast(*gpu, Array(*gpu, Ints(kCount)));  // sets up the pool
    CHECK(
        gpu->path->describe().starts_with(has_events ? "shared GPU, ordered by events" : "shared GPU, ordered by the"));
    auto data = std::make_unique<const Array>(*gpu, rank == 0 ? input(1, kCount) : Ints(kCount));
    gpu->synchronize();
    if (rank == 1) cudasim::hold_reads(meeting->may_read);
    bcast(*gpu, *data);
    if (rank == 0) {
      if (closes) data.reset(), gpu.reset(), group.reset();  // none waits for the read, which would last
      const bool has_waited = waits_for_the_read(meeting->may_read);
      meeting->has_ended = true;
      CHECK(has_waited);
      return;
    }
    while (!meeting->has_ended) usleep(100);  // not its end is what rank 0 hears of
    CHECK(data->values() == input(1, kCount));
    CHECK(await_readers(10s));
  }));
}

/// A child of rank 1 goes through the end of a group that is its parent's; nothing that it says is about its parent.
void a_child_that_ends() {
  Shared<Meeting> meeting;
  Segment segment(2);
  CHECK(fork_ranks(2, [&](int rank) {
    const auto group = group_of(meeting, rank, segment.fd());
    const Gpu gpu(*group);
    const Array data(gpu, Ints(kCount));
    bcast_to_late_device(gpu, data, rank, meeting->may_read);
    if (rank == 1) {
      const int child = fork();
      if (child == 0) {
        cudasim::fail_always("cudaStreamQuery", cudaErrorInitializationError);
        gpu.path->settle();
        _exit(0);
      }
      waitpid(child, nullptr, 0);
      meeting->is_handed_over = true;
      gpu.synchronize();
    } else {
      while (!meeting->is_handed_over) usleep(100);
      CHECK(waits_for_the_read(meeting->may_read));
    }
  }));
}

/// Rank 1's device is later than rank 0 waits.
void a_device_that_is_too_late() {
  Shared<Meeting> meeting;
  Segment segment(2);
  CHECK(fork_ranks(2, [&](int rank) {
    const auto group = group_of(meeting, rank, segment.fd());
    const Gpu gpu(*group);
    const Array data(gpu, Ints(kCount));
    bcast_to_late_device(gpu, data, rank, meeting->may_read);
    if (rank == 0) {
      std::FILE* const said = std::tmpfile();
      const int screen = dup(STDERR_FILENO);
      dup2(fileno(said), STDERR_FILENO);
      const auto began = Clock::now();
      const bool have_read = await_readers(100ms);
      dup2(screen, STDERR_FILENO);
      CHECK(!have_read && Clock::now() - began >= 100ms);
      char line[200] = {};
      std::rewind(said);
      CHECK(std::fgets(line, sizeof line, said));
      CHECK(std::string(line) == "accdp: process " + std::to_string(getpid()) + " ends although rank 1 (pid " +
                                     std::to_string(meeting->pids[1]) +
                                     ") may have yet to read its device memory, after waiting 0.1 s\n");
      CHECK(!std::fgets(line, sizeof line, said));
      // A child knows of nobody who reads what is its parent's.
      const int child = fork();
      if (child == 0) _exit(await_readers(10s) ? 0 : 1);
      int status = -1;
      CHECK(waitpid(child, &status, 0) == child && status == 0);
      meeting->may_read = true;
    }
    gpu.synchronize();
    CHECK(await_readers(10s));
  }));
}

/// Rank 1 dies before its device has read.
void a_rank_that_dies() {
  Shared<Meeting> meeting;
  Segment segment(2);
  fork_ranks(2, [&](int rank) {
    const auto group = group_of(meeting, rank, segment.fd());
    const Gpu gpu(*group);
    const Array data(gpu, Ints(kCount));
    bcast_to_late_device(gpu, data, rank, meeting->may_read);
    if (rank == 1) {
      meeting->is_handed_over = true;
      raise(SIGKILL);
    }
    while (!meeting->is_handed_over) usleep(100);
    CHECK(await_readers(10s));
    meeting->has_ended = true;
    std::_Exit(0);  // to free device memory waits for all streams, and this one's may be behind the dead one's work
  });
  CHECK(meeting->has_ended);
}

/// Nor is a rank of a group that has failed waited for.
void a_group_that_fails() {
  Shared<Meeting> meeting;
  Segment segment(2);
  CHECK(fork_ranks(2, [&](int rank) {
    const auto group = group_of(meeting, rank, segment.fd());
    const Gpu gpu(*group);
    const Array data(gpu, Ints(kCount));
    bcast_to_late_device(gpu, data, rank, meeting->may_read);
    if (rank == 0) {
      group->abort("enough");
      CHECK(await_readers(10s));
      meeting->may_read = true;
    }
    gpu.synchronize();
  }));
}

/// Groups come and go: what is kept of them goes when it has been read.
void many_groups() {
  Shared<Meeting> meeting;
  Segment segments[] = {Segment(2), Segment(2), Segment(2)};
  CHECK(fork_ranks(2, [&](int rank) {
    int left = -1;
    for (const Segment& segment : segments) {
      {
        const auto group = group_of(meeting, rank, segment.fd());
        const Gpu gpu(*group);
        bcast(gpu, Array(gpu, Ints(kCount)));
      }
      CHECK(await_readers(10s));
      CHECK(left < 0 || cudasim::live_objects() == left);
      left = cudasim::live_objects();
    }
  }));
}

}  // namespace

int main() {
  CHECK(await_readers(10s));  // nothing was ever shared
  for (bool closes : {false, true}) a_late_device(closes, true);
  a_late_device(true, false);
  a_child_that_ends();
  a_device_that_is_too_late();
  a_rank_that_dies();
  a_group_that_fails();
  many_groups();
}
