// Slots of a pool that goes while another rank's stream has yet to read them: what takes their memory next must not
// write there before. One that is in use all the time. And one that can never end.
#include <csignal>

#include "device_checks.hpp"

namespace {

constexpr std::size_t kCount = 10'000;

std::unique_ptr<Group> group_of(const std::vector<int>& pids, int rank, int fd) {
  std::vector<Peer> peers;
  for (int pid : pids) peers.push_back({"host", pid, 0, 0});
  return std::make_unique<Group>("test", rank, peers, fd, 30, nullptr);
}

void bcast(const Gpu& gpu, const Array& data) {
  DeviceCollectives via = gpu.via();
  gpu.group.bcast(data.bytes(), kType, 0, -1, via);
}

/// Rank 0 leaves a group when its part is done and works in another, of both ranks or of its own, at once.
void next_group(bool is_of_both) {
  struct Meeting {
    std::atomic<int> pids[2];
  };
  Shared<Meeting> meeting;
  Segment first(2), second(2);
  CHECK(fork_ranks(2, [&](int rank) {
    meeting->pids[rank] = getpid();
    while (!meeting->pids[0] || !meeting->pids[1]) usleep(100);
    const std::vector<int> both{meeting->pids[0], meeting->pids[1]};
    auto group = group_of(both, rank, first.fd());
    auto gpu = std::make_unique<Gpu>(*group);
    bcast(*gpu, Array(*gpu, Ints(kCount)));  // sets up the pool
    const Array data(*gpu, rank == 0 ? input(1, kCount) : Ints(kCount));
    gpu->synchronize();
    if (rank == 1) cudasim::set_jitter(300'000);  // it reads late
    bcast(*gpu, data);
    if (rank == 0) {
      gpu->synchronize();
      gpu.reset();
      group.reset();
    }
    if (is_of_both || rank == 0) {
      const auto next = group_of(is_of_both ? both : std::vector<int>{getpid()}, rank, is_of_both ? second.fd() : -1);
      const Gpu there(*next);
      for (int turn = 0; turn < 2; ++turn) {  // both halves of the slots
        const Array other(there, input(7, kCount));
        bcast(there, other);
        CHECK(other.values() == input(7, kCount));
      }
    }
    if (rank == 1) CHECK(data.values() == input(1, kCount));
  }));
}

/// A group's pool waits for what another thread has handed over to its own, not until there is no more of it.
void while_another_thread_goes_on() {
  struct Meeting {
    std::atomic<int> pids[2];
  };
  Shared<Meeting> meeting;
  Segment first(2), second(2);
  CHECK(fork_ranks(2, [&](int rank) {
    meeting->pids[rank] = getpid();
    while (!meeting->pids[0] || !meeting->pids[1]) usleep(100);
    const std::vector<int> both{meeting->pids[0], meeting->pids[1]};
    const auto group = group_of(both, rank, first.fd());
    cudasim::set_jitter(500);  // the device takes longer for a call than it takes to make the next
    std::atomic<int> calls{0};
    std::atomic<bool> is_enough{false};
    std::thread other([&] {
      const Gpu gpu(*group);
      const Array data(gpu, Ints(kCount));
      for (Ints last{0}; last[0] == 0; ++calls) {
        bcast(gpu, data);
        usleep(1000);
        last[0] = is_enough;
        group->bcast(bytes(last), kType, 0);
      }
    });
    while (calls < 3) usleep(100);
    const auto next = group_of(both, rank, second.fd());
    const Gpu gpu(*next);
    const Array data(gpu, rank == 0 ? input(1, kCount) : Ints(kCount));
    bcast(gpu, data);
    CHECK(data.values() == input(1, kCount));
    is_enough = true;
    other.join();
  }));
}

/// Rank 1 dies before its device has done what rank 0's waits for, which then never goes on. Rank 0 does.
void a_rank_dies_with_work_under_way() {
  struct Meeting {
    std::atomic<int> pids[2];
    std::atomic<bool> rank_0_went_on{false};
  };
  Shared<Meeting> meeting;
  Segment segment(2);
  fork_ranks(2, [&](int rank) {
    meeting->pids[rank] = getpid();
    while (!meeting->pids[0] || !meeting->pids[1]) usleep(100);
    auto group = group_of({meeting->pids[0], meeting->pids[1]}, rank, segment.fd());
    auto gpu = std::make_unique<Gpu>(*group);
    const Array data(*gpu, Ints(kCount));
    bcast(*gpu, data);  // sets up the pool
    gpu->synchronize();
    if (rank == 1) call_in_stream(gpu->stream(), [](void*) { sleep(1000); }, nullptr);
    DeviceCollectives via = gpu->via();
    group->bcast(data.bytes(), kType, 1, -1, via);
    if (rank == 1) raise(SIGKILL);
    CHECK_THROWS(bcast(*gpu, data), PeerDied, "rank 1 (pid");
    CHECK(!gpu->path->settle());
    gpu->path.reset();
    meeting->rank_0_went_on = true;
    std::_Exit(0);  // to free device memory waits for all streams
  });
  CHECK(meeting->rank_0_went_on);
}

/// Rank 1 dies while both probe whether events work, and what rank 0 waits for never comes. Rank 0 goes on.
void a_rank_dies_in_the_probe() {
  struct Meeting {
    std::atomic<int> pids[2];
    std::atomic<bool> rank_0_went_on{false};
  };
  Shared<Meeting> meeting;
  Segment segment(2);
  fork_ranks(2, [&](int rank) {
    meeting->pids[rank] = getpid();
    while (!meeting->pids[0] || !meeting->pids[1]) usleep(100);
    const auto group = group_of({meeting->pids[0], meeting->pids[1]}, rank, segment.fd());
    const Gpu gpu(*group);
    const Array data(gpu, Ints(kCount));
    gpu.synchronize();
    if (rank == 1) {
      cudasim::stop_streams();
      alarm(1);
    }
    CHECK_THROWS(bcast(gpu, data), PeerDied, "rank 1 (pid");
    meeting->rank_0_went_on = true;
    std::_Exit(0);  // to free device memory waits for all streams
  });
  CHECK(meeting->rank_0_went_on);
}

/// Rank 1 dies before its device has done what rank 0's waits for, in the middle of an operation over two GPUs: the
/// segments of rank 0 never settle. `deterministic`: in rank order.
void a_rank_dies_with_segments_under_way(bool deterministic) {
  constexpr int kRanks = 4;
  struct Meeting {
    std::atomic<int> pids[kRanks];
    std::atomic<int> went_on{0};
  };
  Shared<Meeting> meeting;
  Segment segment(kRanks);
  fork_ranks(kRanks, [&](int rank) {
    meeting->pids[rank] = getpid();
    for (const auto& pid : meeting->pids)
      while (!pid) usleep(100);
    cudasim::set_devices(1, rank / 2);
    cudasim::set_peer_access(false);
    std::vector<int> pids;
    for (const auto& pid : meeting->pids) pids.push_back(pid);
    const auto group = group_of(pids, rank, segment.fd());
    const Gpu gpu(*group);
    const Array data(gpu, input(rank, 40 * kCount));
    const auto sum = [&] {
      DeviceCollectives via = gpu.via();
      if (deterministic) via.in_rank_order();
      group->allreduce(data.bytes(), data.bytes(), kType, ReduceOp::kSum, -1, via);
    };
    sum();
    CHECK(gpu.path->describe().find("2 GPUs apart") == 0);
    gpu.synchronize();
    if (rank == 1) {
      call_in_stream(gpu.stream(), [](void*) { sleep(1000); }, nullptr);
      alarm(1);
    }
    CHECK_THROWS(sum(), PeerDied, "rank 1 (pid");
    meeting->went_on++;
    std::_Exit(0);  // to free device memory waits for all streams
  });
  CHECK(meeting->went_on == kRanks - 1);
}

}  // namespace

int main() {
  next_group(true);
  next_group(false);
  while_another_thread_goes_on();
  a_rank_dies_with_work_under_way();
  a_rank_dies_in_the_probe();
  for (bool deterministic : {false, true}) a_rank_dies_with_segments_under_way(deterministic);
}
