// A rank dies behind the work of its device: what the others' devices wait for never comes. Their calls end with its
// name, whatever they were about.
#include <csignal>
#include <optional>

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

/// What rank 1's device gets from now on it never does.
void stall(const Gpu& gpu) {
  if (gpu.group.rank() == kDead) cudasim::call_in_stream(gpu.stream(), [](void*) { sleep(1000); }, nullptr);
}
void die(const Gpu& gpu) {
  if (gpu.group.rank() == kDead) raise(SIGKILL);
}
/// The same, and the rank dies in the middle of what comes next.
void stall_and_die(const Gpu& gpu) {
  stall(gpu);
  if (gpu.group.rank() == kDead) ualarm(300'000, 0);
}

/// A call of rank 0's after one whose work never comes. Its tensors and host copies may never be used again.
void after_a_call(const std::function<void(const Gpu&, const Array&)>& call) {
  with_a_death(kOneNode, [&](Group& group, const auto& leave) {
    auto gpu = std::make_unique<Gpu>(group);
    const Array data(*gpu, Ints(kCount));
    bcast(*gpu, data, 0);  // sets up the pool
    gpu->synchronize();
    stall(*gpu);
    bcast(*gpu, data, kDead);
    die(*gpu);
    CHECK_THROWS(call(*gpu, data), PeerDied, "rank 1 (pid");
    CHECK(!gpu->path->settle());
    gpu->path.reset();
    leave();
  });
}

/// While many calls are handed over, one after the other: more than the driver takes before it keeps the caller.
void after_many_calls() {
  with_a_death(kOneNode, [](Group& group, const auto& leave) {
    const Gpu gpu(group);
    const Array data(gpu, Ints(kCount));
    const auto call_often = [&] {
      for (int call = 0; call < 1000; ++call) bcast(gpu, data, call % 2);
    };
    call_often();
    gpu.synchronize();
    if (group.rank() == kDead) cudasim::set_most_queued(1'000'000);  // else it may be the one that stands first
    stall_and_die(gpu);
    CHECK_THROWS(call_often(), PeerDied, "rank 1 (pid");
    leave();
  });
}

/// What the memory of calls that fail belongs to is never let go where the device may go on with it: of a collective,
/// and of host copies that are made on another thread, later.
void owners_are_kept() {
  with_a_death(kOneNode, [](Group& group, const auto& leave) {
    auto gpu = std::make_unique<Gpu>(group);
    const Array data(*gpu, Ints(kCount));
    bcast(*gpu, data, 0);
    gpu->synchronize();
    stall(*gpu);
    auto owner = std::make_shared<int>(), other = std::make_shared<int>();
    const std::weak_ptr<int> kept = owner, other_kept = other;
    const StreamMark mark(kDevice, reinterpret_cast<std::uintptr_t>(gpu->stream()));
    std::unique_ptr<HostCopies> copies = gpu->path->fetch_behind(mark, {{data.bytes(), false, true}}, std::move(other));
    bcast(*gpu, data, kDead);
    die(*gpu);
    {
      DeviceCollectives via(gpu->path, kDevice, reinterpret_cast<std::uintptr_t>(gpu->stream()), std::move(owner));
      CHECK_THROWS(gpu->group.bcast(data.bytes(), kType, 0, -1, via), PeerDied, "rank 1 (pid");
    }
    CHECK(!kept.expired());
    copies.reset();
    CHECK(!other_kept.expired());
    gpu->path.reset();
    leave();
  });
}

/// What else this process has shared and allocated is let go of without a wait for all streams, which has no end.
void others_end() {
  with_a_death(kOneNode, [](Group& group, const auto& leave) {
    auto gpu = std::make_unique<Gpu>(group), other = std::make_unique<Gpu>(group);
    std::optional<Array> data(std::in_place, *gpu, Ints(kCount)), others(std::in_place, *other, Ints(kCount));
    for (int root : {0, kDead}) bcast(*other, *others, root);
    bcast(*gpu, *data, 0);
    other->synchronize();
    gpu->synchronize();
    stall(*gpu);
    bcast(*gpu, *data, kDead);
    die(*gpu);
    CHECK_THROWS(bcast(*gpu, *data, 0), PeerDied, "rank 1 (pid");
    data.reset();
    gpu->path.reset();
    others.reset();
    other->path.reset();
    leave();
  });
}

/// What was only late is known to have ended when it has.
void late_work() {
  Shared<std::atomic<int>> known;
  run_processes_on_nodes(kOneNode, [&](Group& group) {
    const Gpu gpu(group);
    const Array data(gpu, Ints(kCount));
    bcast(gpu, data, 0);
    gpu.synchronize();
    if (group.rank() == 0) cudasim::call_in_stream(gpu.stream(), [](void*) { sleep(5); }, nullptr);
    bcast(gpu, data, 0);
    if (group.rank() == 0) group.abort("no paper left");
    CHECK_THROWS(group.barrier(), Error, "no paper left");
    CHECK(!gpu.path->settle(true) && keeps_all_memory());
    gpu.synchronize();
    for (int look = 0; look < 500 && keeps_all_memory(); ++look) usleep(10'000);  // the pool's stream has more to do
    CHECK(!keeps_all_memory());
    ++*known.operator->();
  });
  CHECK(*known.operator->() == 2);
}

/// Where waits for other processes' events have no end, all ranks are told so.
void endless_events() {
  Shared<std::atomic<int>> told;
  run_processes_on_nodes(kOneNode, [&](Group& group) {
    cudasim::lose_ipc_events(group.rank() == 0);
    const Gpu gpu(group);
    const Array data(gpu, Ints(kCount));
    CHECK_THROWS(bcast(gpu, data, 0), CudaError, "rank 0: waits for events of other processes do not end: expected");
    ++*told.operator->();
    std::_Exit(0);
  });
  CHECK(*told.operator->() == 2);
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
    cudasim::set_islands(1);
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
    stall_and_die(gpu);
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
      options.on_device = &copies->on_device();
      const StreamReport report = group.allreduce_stream({{copies->blocks()[0], kFloat}}, ReduceOp::kSum, options);
      CHECK(report.codec_place == "device");
      copies->deliver();
    };
    sum();
    gpu.synchronize();
    stall_and_die(gpu);
    CHECK_THROWS(sum(), PeerDied, "rank 1 (pid");
    CHECK(group.topology().node() != 0 || !gpu.path->settle(true));
    leave();
  });
}

}  // namespace

int main() {
  const auto stream = [](const Gpu& gpu) { return reinterpret_cast<std::uintptr_t>(gpu.stream()); };
  const auto after = [](std::function<void(const Gpu&, const Array&)> call) { return [=] { after_a_call(call); }; };
  const std::vector<std::function<void()>> scenes{
      after([](const Gpu& gpu, const Array& data) { bcast(gpu, data, 0); }),
      after([&](const Gpu& gpu, const Array& data) {
        gpu.path->fetch(kDevice, stream(gpu), {{data.bytes(), true, false}});
      }),
      after([&](const Gpu& gpu, const Array& data) {
        send_from_device(gpu.group, kDevice, stream(gpu), data.bytes(), kDead, 3, -1);
      }),
      after([&](const Gpu& gpu, const Array&) { gpu.path->await(kDevice, stream(gpu)); }),
      after_many_calls,
      owners_are_kept,
      others_end,
      late_work,
      endless_events,
      in_the_probe,
      [] { in_segments(false); },
      [] { in_segments(true); },
      in_a_compressed_sum,
  };
  // All at once: they do little but wait until a death counts.
  CHECK(fork_ranks(static_cast<int>(scenes.size()), [&](int scene) { scenes[scene](); }));
}
