// A pool that is made while another one of the same ranks is in use all the time.
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

int main() { while_another_thread_goes_on(); }
