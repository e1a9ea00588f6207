// Processes that use two devices, or only the second: what one has made is never used, or kept, for the other.
#include <thread>

#include "device_checks.hpp"

namespace {
constexpr std::size_t kCount = 10'000, kSize = kCount * sizeof(std::int32_t);

struct Meeting {
  std::atomic<int> pids[2];
  std::atomic<bool> may_read{false};
};
std::unique_ptr<Group> group_of(Shared<Meeting>& meeting, int rank, int fd) {
  meeting->pids[rank] = getpid();
  while (!meeting->pids[0] || !meeting->pids[1]) usleep(100);
  const std::vector<Peer> peers{{"host", meeting->pids[0], 0, 0}, {"host", meeting->pids[1], 0, 0}};
  return std::make_unique<Group>("test", rank, peers, fd, 30, nullptr);
}

/// Of a device, with a stream of its own.
struct User {
  User(Group& group, int device) : group(group), device(device), path(device_path(group)) {
    const DeviceGuard guard(device);
    stream = make_stream();
    memory = DeviceBuffer(kSize);
  }
  ~User() {
    const DeviceGuard guard(device);
    synchronize(stream.get());
    path.reset();
    memory = {};
    stream = {};
  }
  void bcast() {
    DeviceCollectives via(path, device, reinterpret_cast<std::uintptr_t>(stream.get()));
    group.bcast({memory.data(), kSize}, kType, 0, -1, via);
  }
  void fill(const Ints& values) { put = values, copy_async(memory.data(), put.data(), kSize, stream.get()); }
  Ints values() {
    Ints found(kCount);
    copy_async(found.data(), memory.data(), kSize, stream.get());
    synchronize(stream.get());
    return found;
  }
  Group& group;
  int device;
  std::shared_ptr<DevicePath> path;
  Ints put;
  Stream stream;
  DeviceBuffer memory;
};

/// One group after another, of the same ranks, each on another device; the first one's device is late.
void one_after_the_other(bool closes) {
  Shared<Meeting> meeting;
  Segment first(2), second(2);
  CHECK(fork_ranks(2, [&](int rank) {
    cudasim::set_devices(2);
    auto group = group_of(meeting, rank, first.fd());
    auto user = std::make_unique<User>(*group, 0);
    user->bcast();
    user->fill(rank == 0 ? input(1, kCount) : Ints(kCount));
    synchronize(user->stream.get());
    if (!closes) cudasim::call_in_stream(user->stream.get(), [](void*) { usleep(300'000); }, nullptr);
    user->bcast();
    if (closes) user.reset(), group.reset();
    const auto next = group_of(meeting, rank, second.fd());
    User there(*next, 1);
    const std::size_t before = cudasim::bytes_from_other_gpus();
    there.fill(rank == 0 ? input(3, kCount) : Ints(kCount));
    there.bcast();
    CHECK(there.values() == input(3, kCount));
    CHECK(cudasim::bytes_from_other_gpus() == before);
    if (!closes) CHECK(user->values() == input(1, kCount));
    CHECK(await_readers(std::chrono::seconds(10)));
  }));
}

/// Pinned memory goes from messages of one device to those of the other.
void messages_of_both() {
  CHECK(fork_ranks(1, [](int) {
    cudasim::set_devices(2);
    Group group("test", 0, {{"host", getpid(), 0, 0}}, -1, 30, nullptr);
    for (int device : {0, 1, 0, 1}) {
      User user(group, device);
      const auto stream = reinterpret_cast<std::uintptr_t>(user.stream.get());
      user.fill(input(device, kCount));
      send_from_device(group, device, stream, {user.memory.data(), kSize}, 0, 1, 5);
      user.fill(Ints(kCount));
      receive_to_device(group, device, stream, {user.memory.data(), kSize}, 0, 1, 5);
      CHECK(user.values() == input(device, kCount));
    }
  }));
}

/// Threads that have chosen no device make no context on the first.
void only_the_second() {
  Shared<Meeting> meeting;
  Segment segment(2);
  CHECK(fork_ranks(2, [&](int rank) {
    cudasim::set_devices(2);
    use_device(1);
    auto group = group_of(meeting, rank, segment.fd());
    auto user = std::make_unique<User>(*group, 1);
    user->bcast();
    synchronize(user->stream.get());
    if (rank == 1) cudasim::hold_reads(meeting->may_read);
    user->bcast();
    CHECK(!cudasim::has_context(0));
    const std::jthread device([&] {
      usleep(300'000);
      if (rank == 1) meeting->may_read = true;
    });
    // Rank 0's reads are not late, and rank 1's memory has no reader that is.
    std::thread([&] { CHECK(await_readers(std::chrono::seconds(10))); }).join();
    CHECK(!cudasim::has_context(0));
    auto mark = std::make_unique<StreamMark>(1, reinterpret_cast<std::uintptr_t>(user->stream.get()));
    const auto on_a_new_thread = [](auto work) {
      std::thread(work).join();
      CHECK(!cudasim::has_context(0));
    };
    on_a_new_thread([&] { mark.reset(); });
    on_a_new_thread([&] { CHECK(user->path->settle()); });
    on_a_new_thread([&] { user->path.reset(); });
    user.reset();
    std::thread([&] { group.reset(); }).join();
    std::thread([&] { CHECK(await_readers(std::chrono::seconds(10))); }).join();
    CHECK(!cudasim::has_context(0));
  }));
}
}  // namespace

int main() {
  for (bool closes : {false, true}) one_after_the_other(closes);
  messages_of_both();
  only_the_second();
}
