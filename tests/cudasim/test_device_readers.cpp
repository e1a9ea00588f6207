// A process that ends waits until the others have read its memory: where their devices are late, not where they are
// gone, where the group has failed, in a process that was forked, or for longer than it was told.
#include <sys/wait.h>

#include <csignal>
#include <cstdio>

#include "device_checks.hpp"
#include "gpu/readers.hpp"

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kCount = 10'000;
constexpr auto kLate = 1'000'000us;  // by which rank 1's device reads later
constexpr auto kSoon = 500ms;        // at most where nothing is waited for, ten looks whether a rank lives

struct Meeting {
  std::atomic<int> pids[2];
  std::atomic<bool> is_handed_over{false}, has_ended{false};
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

/// Rank 1's device comes to the second of two broadcasts late.
void bcast_to_late_device(const Gpu& gpu, const Array& data, int rank, std::chrono::microseconds late) {
  bcast(gpu, data);  // sets up the pool
  gpu.synchronize();
  if (rank == 1) cudasim::set_late_reads(static_cast<int>(late.count()));
  bcast(gpu, data);
}

auto timed(auto call) {
  const auto began = Clock::now();
  call();
  return Clock::now() - began;
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
    const Array data(*gpu, rank == 0 ? input(1, kCount) : Ints(kCount));
    gpu->synchronize();
    if (rank == 1) cudasim::set_late_reads(kLate.count());
    const auto began = Clock::now();
    bcast(*gpu, data);
    if (rank == 0) {
      if (closes) gpu.reset(), group.reset();
      CHECK(Clock::now() - began < kLate / 2);  // nothing else waits for the read
      const bool have_read = await_readers(10s);
      const auto took = Clock::now() - began;
      meeting->has_ended = true;
      CHECK(have_read && took >= kLate && took < 2 * kLate);
      return;
    }
    while (!meeting->has_ended) usleep(100);  // not its end is what rank 0 hears of
    CHECK(data.values() == input(1, kCount));
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
    const auto began = Clock::now();
    bcast_to_late_device(gpu, data, rank, kLate);
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
      CHECK(await_readers(10s) && Clock::now() - began >= kLate);
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
    bcast_to_late_device(gpu, data, rank, kLate);
    if (rank == 0) {
      std::FILE* const said = std::tmpfile();
      const int screen = dup(STDERR_FILENO);
      dup2(fileno(said), STDERR_FILENO);
      bool has_waited = false;
      const auto took = timed([&] { has_waited = !await_readers(100ms); });
      dup2(screen, STDERR_FILENO);
      CHECK(has_waited && took >= 100ms && took < 100ms + kSoon);
      char line[200] = {};
      std::rewind(said);
      CHECK(std::fgets(line, sizeof line, said));
      CHECK(std::string(line) == "accdp: process " + std::to_string(getpid()) + " ends although rank 1 (pid " +
                                     std::to_string(meeting->pids[1]) +
                                     ") may have yet to read its device memory, after waiting 0.1 s\n");
      CHECK(!std::fgets(line, sizeof line, said));
      // A child knows of nobody who reads what is its parent's.
      const int child = fork();
      if (child == 0) _exit(timed([] { CHECK(await_readers(10s)); }) < kSoon ? 0 : 1);
      int status = -1;
      CHECK(waitpid(child, &status, 0) == child && status == 0);
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
    bcast_to_late_device(gpu, data, rank, 1000 * kLate);
    if (rank == 1) {
      meeting->is_handed_over = true;
      raise(SIGKILL);
    }
    while (!meeting->is_handed_over) usleep(100);
    CHECK(timed([] { CHECK(await_readers(10s)); }) < kSoon);
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
    bcast_to_late_device(gpu, data, rank, kLate);
    if (rank == 0) {
      group->abort("enough");
      CHECK(timed([] { CHECK(await_readers(10s)); }) < kSoon);
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
