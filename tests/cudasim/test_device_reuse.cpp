// Slots of a pool that goes while another rank's stream has yet to read them: what takes their memory next must not
// write there before. And one that is in use all the time.
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
    auto data = std::make_unique<const Array>(*gpu, rank == 0 ? input(1, kCount) : Ints(kCount));
    gpu->synchronize();
    if (rank == 1) cudasim::set_jitter(300'000);  // it reads late
    bcast(*gpu, *data);
    if (rank == 0) {
      gpu->synchronize();
      data.reset();
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
    if (rank == 1) CHECK(data->values() == input(1, kCount));
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

}  // namespace

int main() {
  next_group(true);
  next_group(false);
  while_another_thread_goes_on();
}
