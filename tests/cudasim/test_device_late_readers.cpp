// Devices that come late to what they read of a pool, beside other pools of the same ranks.
#include <thread>

#include "device_checks.hpp"

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kCount = 10'000;

struct Meeting {
  std::atomic<int> pids[2];
  std::atomic<bool> may_read{false}, has_ended{false};
};

std::vector<Peer> meet(Shared<Meeting>& meeting, int rank) {
  meeting->pids[rank] = getpid();
  while (!meeting->pids[0] || !meeting->pids[1]) usleep(100);
  return {{"host", meeting->pids[0], 0, 0}, {"host", meeting->pids[1], 0, 0}};
}

void bcast(const Gpu& gpu, const Array& data) {
  DeviceCollectives via = gpu.via();
  gpu.group.bcast(data.bytes(), kType, 0, -1, via);
}

/// A process that ends waits for who reads of a pool, whatever other pools came after it and found nothing to wait for.
void a_second_pool() {
  Shared<Meeting> meeting;
  Segment first(2), second(2);
  CHECK(fork_ranks(2, [&](int rank) {
    const std::vector<Peer> peers = meet(meeting, rank);
    Group group("test", rank, peers, first.fd(), 30, nullptr), later("test", rank, peers, second.fd(), 30, nullptr);
    const Gpu gpu(group), other(later);
    const Array data(gpu, rank == 0 ? input(1, kCount) : Ints(kCount)), others(other, Ints(kCount));
    bcast(gpu, data);
    CHECK(gpu.path->settle());  // all has been read when the second pool looks
    group.barrier();
    bcast(other, others);
    gpu.synchronize();
    other.synchronize();
    if (rank == 1) cudasim::hold_reads(meeting->may_read);
    bcast(gpu, data);
    if (rank == 1) {
      while (!meeting->has_ended) usleep(100);
      gpu.synchronize();
      CHECK(await_readers(10s));
      return;
    }
    std::jthread device([&] {
      usleep(200'000);
      meeting->may_read = true;
    });
    const bool has_waited = await_readers(10s) && meeting->may_read;
    device.join();
    meeting->has_ended = true;
    CHECK(has_waited);
  }));
}

/// Rank 1's device has yet to read of the pool before when both ranks make the next one, or rank 0 one of its own, of
/// the same memory. calls: so that it is the one or the other half of the slots.
void the_next_pool(int calls, bool is_of_both) {
  Shared<Meeting> meeting;
  Segment first(2), second(2);
  CHECK(fork_ranks(2, [&](int rank) {
    const std::vector<Peer> peers = meet(meeting, rank);
    auto group = std::make_unique<Group>("test", rank, peers, first.fd(), 30, nullptr);
    auto gpu = std::make_unique<Gpu>(*group);
    for (int call = 0; call < calls; ++call) bcast(*gpu, Array(*gpu, Ints(kCount)));
    auto data = std::make_unique<const Array>(*gpu, rank == 0 ? input(1, kCount) : Ints(kCount));
    gpu->synchronize();
    if (rank == 1) cudasim::hold_reads(meeting->may_read);
    bcast(*gpu, *data);
    if (rank == 0) {
      gpu->synchronize();
      data.reset();
      gpu.reset();
      group.reset();
    }
    std::jthread device([&] {
      if (rank != 1) return;
      usleep(500'000);
      meeting->may_read = true;
    });
    if (is_of_both || rank == 0) {
      const std::vector<Peer> others = is_of_both ? peers : std::vector{peers[0]};
      Group next("test", rank, others, is_of_both ? second.fd() : -1, 30, nullptr);
      const Gpu there(next);
      const Array other(there, input(7, kCount));
      bcast(there, other);
      CHECK(other.values() == input(7, kCount));
    }
    if (rank == 1) CHECK(data->values() == input(1, kCount));
  }));
}

}  // namespace

int main() {
  a_second_pool();
  for (int calls : {1, 2})
    for (bool is_of_both : {true, false}) the_next_pool(calls, is_of_both);
}
