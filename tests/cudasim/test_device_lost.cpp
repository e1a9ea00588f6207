// A rank dies behind the work of its device: what the others' devices wait for never comes. Their calls end with its
// name, whatever they were about.
#include <csignal>

#include "codec_data.hpp"
#include "device_checks.hpp"
#include "process_wire.hpp"

namespace {

constexpr std::size_t kCount = 10'000;
constexpr int kDead = 1;

/// The body of each rank, of which all but rank 1 come to where they leave, with all that they have: to free device
/// memory waits for all streams.
void with_a_death(const std::vector<int>& nodes,
                  const std::function<void(Group&, const std::function<void()>& leave)>& body) {
  struct Survivors {
    std::atomic<int> went_on{0};
  };
  Shared<Survivors> survivors;
  run_processes_on_nodes(nodes, [&](Group& group) {
    body(group, [&] {
      survivors->went_on++;
      std::_Exit(0);
    });
  });
  CHECK(survivors->went_on == static_cast<int>(nodes.size()) - 1);
}

const std::vector<int> kOneNode{0, 0}, kTwoNodes{0, 0, 1, 1};

void bcast(const Gpu& gpu, const Array& data, int root) {
  DeviceCollectives via = gpu.via();
  gpu.group.bcast(data.bytes(), kType, root, -1, via);
}

/// What rank 1's device gets from now on it never does, and the rank dies.
void die_later(const Gpu& gpu) {
  if (gpu.group.rank() != kDead) return;
  call_in_stream(gpu.stream(), [](void*) { sleep(1000); }, nullptr);
  ualarm(300'000, 0);
}

/// A call of rank 0's after one whose work never comes. Its tensors and host copies may never be used again.
void after_a_call(const std::function<void(const Gpu&, const Array&)>& call) {
  with_a_death(kOneNode, [&](Group& group, const auto& leave) {
    auto gpu = std::make_unique<Gpu>(group);
    const Array data(*gpu, Ints(kCount));
    bcast(*gpu, data, 0);  // sets up the pool
    gpu->synchronize();
    die_later(*gpu);
    bcast(*gpu, data, kDead);
    if (group.rank() == kDead) ::pause();
    CHECK_THROWS(call(*gpu, data), PeerDied, "rank 1 (pid");
    CHECK(!gpu->path->settle());
    gpu->path.reset();
    leave();
  });
}

/// Of another group, which the dead rank is not in: its work is behind that of the first.
void in_another_group() {
  struct Pids {
    std::atomic<int> of[3];
  };
  Shared<Pids> pids;
  const Segment segment(2);
  with_a_death({0, 0, 0}, [&](Group& group, const auto& leave) {
    const auto stream = [](const Gpu& gpu) { return reinterpret_cast<std::uintptr_t>(gpu.stream()); };
    pids->of[group.rank()] = getpid();
    const Gpu gpu(group);
    const Array data(gpu, Ints(kCount));
    bcast(gpu, data, 0);
    std::unique_ptr<Group> other;
    std::unique_ptr<Gpu> beside;
    const auto bcast_beside = [&] {
      DeviceCollectives via{beside->path, kDevice, stream(gpu)};
      other->bcast(data.bytes(), kType, 0, -1, via);
    };
    if (group.rank() != kDead) {
      const std::vector<Peer> peers{{"host", pids->of[0], 0, 0}, {"host", pids->of[2], 0, 0}};
      other = std::make_unique<Group>("other", group.rank() / 2, peers, segment.fd(), 30, nullptr);
      beside = std::make_unique<Gpu>(*other);
      bcast_beside();
    }
    gpu.synchronize();
    group.barrier();
    die_later(gpu);
    bcast(gpu, data, kDead);
    if (group.rank() == kDead) ::pause();
    bcast_beside();
    CHECK_THROWS(beside->path->fetch(kDevice, stream(gpu), {{data.bytes(), true, false}}), PeerDied,
                 "waits for a device that waits for rank 1 (pid");
    CHECK(!beside->path->settle());
    leave();
  });
}

void in_the_probe() {
  with_a_death(kOneNode, [](Group& group, const auto& leave) {
    const Gpu gpu(group);
    const Array data(gpu, Ints(kCount));
    gpu.synchronize();
    if (group.rank() == kDead) {
      cudasim::stop_streams();
      ualarm(300'000, 0);
    }
    CHECK_THROWS(bcast(gpu, data, 0), PeerDied, "rank 1 (pid");
    leave();
  });
}

/// In the middle of an operation over two GPUs: the segments of rank 0 never settle. `deterministic`: in rank order.
void in_segments(bool deterministic) {
  with_a_death({0, 0, 0, 0}, [&](Group& group, const auto& leave) {
    cudasim::set_devices(1, group.rank() / 2);
    cudasim::set_peer_access(false);
    const Gpu gpu(group);
    const Array data(gpu, input(group.rank(), 40 * kCount));
    const auto sum = [&] {
      DeviceCollectives via = gpu.via();
      if (deterministic) via.in_rank_order();
      group.allreduce(data.bytes(), data.bytes(), kType, ReduceOp::kSum, -1, via);
    };
    sum();
    CHECK(gpu.path->describe().find("2 GPUs apart") == 0);
    gpu.synchronize();
    die_later(gpu);
    CHECK_THROWS(sum(), PeerDied, "rank 1 (pid");
    leave();
  });
}

/// In the middle of a compressed sum, what is to be encoded is a sum of the node's ranks on their devices.
void in_a_compressed_sum() {
  with_a_death(kTwoNodes, [](Group& group, const auto& leave) {
    const Gpu gpu(group);
    constexpr Datatype kFloat = Datatype::kF32;
    const Buffer values = make(Kind::kBell, kFloat, 5 * kCount, 17 + group.rank());
    const DeviceBuffer memory(values.size());
    copy_async(memory.data(), values.data(), values.size(), gpu.stream());
    const auto stream = reinterpret_cast<std::uintptr_t>(gpu.stream());
    const auto sum = [&] {
      const std::vector<DeviceBlock> blocks{{{memory.data(), values.size()}, false, true, true}};
      gpu.path->admit(kDevice, stream);
      const std::unique_ptr<HostCopies> copies = gpu.path->fetch(kDevice, stream, blocks);
      StreamOptions options = stream_options("fpk", 8192, "");
      options.far = &copies->far();
      const StreamReport report = group.allreduce_stream({{copies->blocks()[0], kFloat}}, ReduceOp::kSum, options);
      CHECK(report.codec_place == "device");
      copies->deliver();
    };
    sum();
    gpu.synchronize();
    die_later(gpu);
    CHECK_THROWS(sum(), PeerDied, "rank 1 (pid");
    CHECK(group.topology().node() != 0 || !gpu.path->settle(true));
    leave();
  });
}

}  // namespace

int main() {
  const auto stream = [](const Gpu& gpu) { return reinterpret_cast<std::uintptr_t>(gpu.stream()); };
  after_a_call([](const Gpu& gpu, const Array& data) { bcast(gpu, data, 0); });
  after_a_call(
      [&](const Gpu& gpu, const Array& data) { gpu.path->fetch(kDevice, stream(gpu), {{data.bytes(), true, false}}); });
  after_a_call([&](const Gpu& gpu, const Array& data) {
    send_from_device(gpu.group, kDevice, stream(gpu), data.bytes(), kDead, 3, -1);
  });
  after_a_call([&](const Gpu& gpu, const Array&) { gpu.path->await(kDevice, stream(gpu)); });
  in_another_group();
  in_the_probe();
  for (bool deterministic : {false, true}) in_segments(deterministic);
  in_a_compressed_sum();
}
