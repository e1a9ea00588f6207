// Collectives on device memory of ranks in several GPU groups: on several nodes, on GPUs of a node without peer access,
// and both. Every rank of the groups is a process.
#include "device_checks.hpp"
#include "gpu/gpu_groups.hpp"
#include "process_wire.hpp"

using Prepare = std::function<void(int)>;

void prepare_and_check(Group& group, const Prepare& prepare, const std::string& path,
                       const std::function<void(const Gpu&)>& check) {
  prepare(group.rank());
  cudasim::set_jitter(20);
  Gpu gpu(group);
  check(gpu);
  if (gpu.path->describe().find(path) != 0) std::fprintf(stderr, "path: %s\n", gpu.path->describe().c_str());
  CHECK(gpu.path->describe().find(path) == 0);
  one_block(group, 1000);  // host memory in the same group
}

void every_size(const Gpu& gpu) { everything_on_device(gpu); }

void run(const std::vector<int>& nodes, const std::string& path, const Prepare& prepare,
         const std::function<void(const Gpu&)>& check = every_size) {
  CHECK(run_processes_on_nodes(nodes, [&](Group& group) { prepare_and_check(group, prepare, path, check); }));
}

void gpu_of(int gpu) {
  cudasim::set_devices(1, gpu);
  cudasim::set_peer_access(false);
}

/// All roots and operations on lengths around segments, with a rounding that would show an order.
void long_messages(const Gpu& gpu) {
  Group& group = gpu.group;
  for (std::size_t count : {std::size_t{16} << 10, (std::size_t{80} << 10) + 3, std::size_t{500'001}})
    for (int root = 0; root < group.size(); ++root) {
      const Array data(gpu, group.rank() == root ? input(root, count) : Ints(count));
      const Array mine(gpu, input(group.rank(), count)), result(gpu, count);
      DeviceCollectives via = gpu.via();
      group.bcast(data.bytes(), kType, root, -1, via);
      CHECK(std::string(group.last_run().way.algorithm) == "gpu_lanes");
      const bool is_root = group.rank() == root;
      group.reduce(mine.bytes(), is_root ? result.bytes() : Bytes(), kType, ReduceOp::kMax, root, -1, via);
      CHECK(std::string(group.last_run().way.algorithm) == "gpu_lanes");
      CHECK(data.values() == input(root, count));
      CHECK(mine.values() == input(group.rank(), count));
      CHECK(result.values() == (is_root ? input(group.size() - 1, count) : Ints(count, -1)));
    }
}

/// An average of bfloat16, in place: rounded alike on all ranks, which compare what they got.
void averages(const Gpu& gpu) {
  Group& group = gpu.group;
  const std::size_t count = 200'000;
  Ints bits(count / 2);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const float value = 1.0f + static_cast<float>((i * 7 + group.rank() * 13) % 251) / 64;
    std::uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    bits[i] = static_cast<std::int32_t>(word & 0xffff0000u) | static_cast<std::int32_t>(word >> 16);
  }
  const Array data(gpu, bits);
  DeviceCollectives via = gpu.via();
  group.allreduce(data.bytes(), data.bytes(), Datatype::kBF16, ReduceOp::kAvg, -1, via);
  const Ints found = data.values();
  Ints first = found;
  group.bcast(bytes(first), kType, 0);
  CHECK(found == first);
  for (std::size_t i = 0; i < found.size(); i += 997) {
    float wanted = 0;
    for (int r = 0; r < group.size(); ++r) wanted += 1.0f + static_cast<float>((i * 7 + r * 13) % 251) / 64;
    const std::uint32_t word = static_cast<std::uint32_t>(found[i]) & 0xffff0000u;
    float got;
    std::memcpy(&got, &word, sizeof got);
    wanted /= static_cast<float>(group.size());
    CHECK(std::abs(got - wanted) <= 0.03f * wanted);
  }
}

/// Blocks between some pairs of ranks only, so that nodes differ in the number of segments: none, and many.
void few_pairs(const Gpu& gpu) {
  Group& group = gpu.group;
  const int rank = group.rank();
  auto count = [](int from, int to) { return from == 1 && to == 0 ? std::size_t{100'003} : std::size_t{to == 2}; };
  const std::vector<Array> outgoing = arrays(gpu, [&](int q) { return input(10 * rank + q, count(rank, q)); });
  const std::vector<Array> incoming = arrays(gpu, [&](int q) { return Ints(count(q, rank)); });
  DeviceCollectives via = gpu.via();
  group.alltoall(readable(outgoing), writable(incoming), kType, -1, via);
  CHECK(std::string(group.last_run().way.algorithm) == "gpu_pairs");
  for (int q = 0; q < group.size(); ++q) CHECK(incoming[q].values() == input(10 * q + rank, count(q, rank)));
  const Array own(gpu, input(rank, 7)), received(gpu, 7);
  const std::vector<Array> all = arrays(gpu, [](int) { return Ints(7); });
  group.gather(own.bytes(), rank == 1 ? writable(all) : std::vector<Bytes>{}, kType, 1, -1, via);
  CHECK(std::string(group.last_run().way.algorithm) == "gpu_pairs");
  group.scatter(rank == 1 ? readable(all) : std::vector<ConstBytes>{}, received.bytes(), kType, 1, -1, via);
  CHECK(std::string(group.last_run().way.algorithm) == "gpu_pairs");
  CHECK(received.values() == own.values());
}

/// Where what came for one call has not left its room for the device yet when messages of the next call come.
void one_right_after_another(const Gpu& gpu) {
  Group& group = gpu.group;
  const int rank = group.rank();
  const std::size_t count = 2'600, many = 16 << 10;  // a piece of a block; a segment
  cudasim::set_jitter(group.topology().is_near(0) ? 0 : 20'000);
  for (int turn = 0; turn < 3; ++turn) {
    const std::vector<Array> outgoing = arrays(gpu, [&](int q) { return input(10 * rank + q, count); });
    const std::vector<Array> incoming = arrays(gpu, [&](int) { return Ints(count); });
    const Array data(gpu, rank == 0 ? input(turn, many) : Ints(many));
    DeviceCollectives via = gpu.via();
    group.alltoall(readable(outgoing), writable(incoming), kType, -1, via);
    group.bcast(data.bytes(), kType, 0, -1, via);
    for (int q = 0; q < group.size(); ++q) CHECK(incoming[q].values() == input(10 * q + rank, count));
    CHECK(data.values() == input(turn, many));
  }
  cudasim::set_jitter(20);
}

/// A rank that sends another number of bytes than is expected is named, before anything is written there.
void unequal_sizes() {
  CHECK(run_processes_on_nodes({0, 0, 1, 1}, [](Group& group) {
    Gpu gpu(group);
    const std::vector<Array> outgoing =
        arrays(gpu, [&](int q) { return Ints(group.rank() == 3 && q == 0 ? 5 : 4, group.rank()); });
    const std::vector<Array> incoming = arrays(gpu, [](int) { return Ints(4, -1); });
    DeviceCollectives via = gpu.via();
    CHECK_THROWS(group.alltoall(readable(outgoing), writable(incoming), kType, -1, via), Error,
                 group.rank() == 0 ? "sends 20 bytes to rank 0" : "");
    if (group.rank() == 0) CHECK(incoming[3].values() == Ints(4, -1));
  }));
}

void both(const Gpu& gpu) {
  long_messages(gpu);
  averages(gpu);
  few_pairs(gpu);
  for (std::size_t count : {5000, 40'000}) many_blocks_on_device(gpu, count);
}

void groups_of_ranks() {
  // Every lane has one owner, which works for it in its group, and one agent in each other group.
  for (const std::vector<int>& group_of : {std::vector<int>{0}, {0, 0, 0}, {0, 1}, {0, 1, 0, 1}, {0, 1, 1, 1}}) {
    const int ranks = static_cast<int>(group_of.size());
    for (int lanes = 1; lanes <= ranks; ++lanes)
      for (int me = 0; me < ranks; ++me) {
        const GpuGroups groups(me, group_of, lanes);
        CHECK(groups.mine() == group_of[me]);
        std::vector<int> seen(lanes);
        for (int mate : groups.mates()) {
          CHECK(groups.of(mate) == groups.mine());
          for (int lane : groups.lanes_of(mate)) {
            ++seen[lane];
            CHECK(groups.agent(groups.mine(), lane) == mate);
          }
        }
        CHECK(seen == std::vector<int>(lanes, 1));
        const int own = groups.own_lane();
        CHECK(own < 0 || (groups.owner(own) == me && groups.agent(groups.mine(), own) == me));
        if (lanes == ranks) CHECK(own == me);
      }
  }
  CHECK(GpuGroups(0, {0, 1, 1, 1}, 4).largest() == 3);
  CHECK(GpuGroups(0, {0, 1, 1, 1}, 4).lanes_of(0) == (std::vector<int>{0, 1, 2, 3}));
  CHECK(GpuGroups(0, {0, 1, 0, 1}, 4).lanes_of(2) == (std::vector<int>{2, 3}));
  // Fewer lanes than ranks: their owners are spread over the node, and work is spread over each group.
  const GpuGroups few(1, {0, 0, 1, 1}, 2);
  CHECK(few.owner(0) == 0 && few.owner(1) == 2 && few.own_lane() == -1);
  CHECK(few.agent(0, 1) == 1 && few.agent(1, 0) == 3);
}

/// A call that fails on one rank is heard of on all, those of other nodes too.
void failing_call(const char* call, int nth, const char* text, const std::vector<int>& nodes = {0, 0, 1, 1}) {
  CHECK(run_processes_on_nodes(nodes, [&](Group& group) {
    Gpu gpu(group);
    const Array data(gpu, input(group.rank(), 500'000));
    const Array sum(gpu, 500'000);
    DeviceCollectives via = gpu.via();
    auto allreduce = [&] { group.allreduce(data.bytes(), sum.bytes(), kType, ReduceOp::kSum, -1, via); };
    allreduce();
    CHECK(sum.values() == sum_of_inputs(4, 500'000));
    const auto inject = [&] { cudasim::fail(call, cudaErrorLaunchFailure, nth); };
    fails_on_all(gpu, 3, inject, text, allreduce);
  }));
}

/// Long messages between nodes need no memory of the host where MPI takes the device's; all others do.
void messages_by_mpi(const Gpu& gpu) {
  Group& group = gpu.group;
  const int rank = group.rank(), other = (rank + 2) % 4;  // on the other node
  const auto stream = reinterpret_cast<std::uintptr_t>(gpu.stream());
  for (std::size_t count : {1000, 300'001}) messages_on_device(gpu, count);
  one_block_on_device(gpu, 10);
  const std::size_t count = 300'001;
  const Array out(gpu, input(rank, count)), in(gpu, count), late(gpu, 3 * count);
  cudasim::fail_always("cudaHostAlloc", cudaErrorLaunchFailure);
  const auto send = [&] { send_from_device(group, kDevice, stream, out.bytes(), other, 4, -1); };
  if (rank < 2) send();
  CHECK(receive_to_device(group, kDevice, stream, in.bytes(), other, 4, -1) == other);
  if (rank >= 2) send();
  CHECK(in.values() == input(other, count));
  // More than the messages before have left in the pool.
  CHECK_THROWS(receive_to_device(group, kDevice, stream, late.bytes(), -1, 5, -1), CudaError, "cudaHostAlloc");
}

/// One end on the device and the other in host memory, both ways.
void mixed_messages(const Gpu& gpu) {
  Group& group = gpu.group;
  const int rank = group.rank(), other = 1 - rank;
  const auto stream = reinterpret_cast<std::uintptr_t>(gpu.stream());
  for (std::size_t count : {std::size_t{0}, std::size_t{1000}, std::size_t{300'001}})
    for (bool device_sends : {true, false}) {
      const Array far(gpu, rank == 0 ? input(0, count) : Ints(count));
      Ints near = rank == 0 ? input(0, count) : Ints(count);
      if (rank == 0 && device_sends)
        send_from_device(group, kDevice, stream, far.bytes(), other, 6, -1);
      else if (rank == 0)
        group.send_now(bytes(near), other, 6);
      else if (device_sends)
        CHECK(group.receive_now(bytes(near), other, 6) == other);
      else
        CHECK(receive_to_device(group, kDevice, stream, far.bytes(), other, 6, -1) == other);
      if (rank == 1) CHECK((device_sends ? near : far.values()) == input(0, count));
    }
  one_block_on_device(gpu, 10);
}

/// A rank that expects another size hears of it, before anything is written.
void messages_of_other_sizes() {
  CHECK(run_processes_on_nodes({0, 1}, [](Group& group) {
    Gpu gpu(group);
    const auto stream = reinterpret_cast<std::uintptr_t>(gpu.stream());
    const Array data(gpu, Ints(group.rank() == 0 ? 100'000 : 99'000, group.rank()));
    if (group.rank() == 0)
      CHECK_THROWS(send_from_device(group, kDevice, stream, data.bytes(), 1, 4, -1), Error, "which receives 396000");
    else
      CHECK_THROWS(receive_to_device(group, kDevice, stream, data.bytes(), 0, 4, -1), Error, "sends 400000 bytes");
    CHECK(data.values() == Ints(data.values().size(), group.rank()));
    gpu.synchronize();
  }));
}

int main() {
  groups_of_ranks();
  set_setting("ACCDP_GPU_SLOT_BYTES", "64k");
  unequal_sizes();
  auto alike = [](int) {};
  run({0, 0, 1, 1}, "shared GPU on each of 2 nodes, ordered by events, joined through host memory", alike);
  run({0, 1, 0, 1, 2, 2}, "shared GPU on each of 3 nodes", alike, both);
  run({0, 1, 0, 1, 2, 2}, "shared GPU on each of 3 nodes", alike, one_right_after_another);
  run({0, 0, 1, 1}, "peer GPUs on each of 2 nodes", [](int rank) { cudasim::set_devices(1, rank); }, both);
  run(
      {0, 0, 1, 1}, "shared GPU on each of 2 nodes, ordered by the host",
      [](int rank) {
        if (rank == 0) cudasim::ignore_ipc_events(true);
        if (rank == 3) cudasim::fail_always("cudaIpcOpenEventHandle", cudaErrorNotSupported);
      },
      both);
  // GPUs of a node that reach each other, with several ranks on each.
  auto two_on_each = [](int rank) { cudasim::set_devices(1, rank / 2 % 2); };
  run({0, 0, 0, 0, 1, 1, 1, 1}, "peer GPUs on each of 2 nodes", two_on_each, both);
  run(
      {0, 0, 0, 1, 1}, "peer GPUs on each of 2 nodes",
      [](int rank) { cudasim::set_devices(1, rank == 2 || rank == 3); }, both);
  run({0, 0, 0, 0}, "peer GPUs, ordered by events", two_on_each, averages);
  // GPUs of a node without peer access, two ranks on each; one and three; and that on two nodes.
  run({0, 0, 0, 0}, "2 GPUs apart, ordered by events, joined through host memory", [](int rank) { gpu_of(rank / 2); });
  run({0, 0, 0, 0}, "2 GPUs apart", [](int rank) { gpu_of(rank == 2); }, both);
  run({0, 0, 0, 0, 1, 1, 1, 1}, "2 GPUs apart on each of 2 nodes", [](int rank) { gpu_of(rank % 2); }, both);
  // One node has two groups, the other one.
  run({0, 0, 1, 1}, "", [](int rank) { gpu_of(rank == 1); }, both);

  // Nodes with different numbers of ranks: on one GPU each; on several in some; with peers.
  run({0, 0, 0, 1}, "shared GPU on each of 2 nodes", alike, both);
  run({0, 1, 1, 0, 1}, "shared GPU on each of 2 nodes", alike);
  run({0, 0, 0, 1, 1, 2}, "", [](int rank) { gpu_of(rank == 2); }, both);
  run({0, 1, 1, 1, 1}, "", [](int rank) { gpu_of(rank > 2); }, both);
  run({0, 1, 1, 0, 0}, "peer GPUs on each of 2 nodes", [](int rank) { cudasim::set_devices(1, rank / 2); }, both);

  // Who cannot, goes through the host with all others.
  run({0, 1}, "staged: the ranks are on several nodes", alike);
  run({0, 1}, "staged: the ranks are on several nodes", alike, mixed_messages);
  run(
      {0, 0, 1, 1}, "staged: ",
      [](int rank) {
        if (rank == 2) cudasim::set_largest_allocation((128 << 10) - 1);
      },
      [](const Gpu& gpu) { one_block_on_device(gpu, 1000); });
  run(
      {0, 0, 0, 1}, "staged: ",
      [](int rank) {
        if (rank == 1) cudasim::fail("cudaIpcOpenMemHandle", cudaErrorNotSupported);
      },
      [](const Gpu& gpu) { one_block_on_device(gpu, 100'000); });

  // MPI takes device memory, which here is host memory.
  set_setting("ACCDP_MPI_CUDA", "on");
  run({0, 0, 1, 1}, "shared GPU on each of 2 nodes, ordered by events, joined by MPI on device memory", alike);
  run({0, 0, 1, 1}, "shared GPU on each of 2 nodes", alike, messages_by_mpi);
  run({0, 1}, "shared GPU on each of 2 nodes", alike, mixed_messages);
  messages_of_other_sizes();
  run({0, 1, 2}, "shared GPU on each of 3 nodes, ordered by events, joined by MPI on device memory", alike, both);
  run({0, 0, 1, 2, 2}, "shared GPU on each of 3 nodes, ordered by events, joined by MPI on device memory", alike, both);
  run(
      {0, 0, 0, 0, 1, 1, 1, 1}, "2 GPUs apart on each of 2 nodes, ordered by events, joined through host memory",
      [](int rank) { gpu_of(rank / 2 % 2); }, both);
  run({0, 0, 0, 0, 1, 1, 1, 1}, "peer GPUs on each of 2 nodes, ordered by events, joined by MPI on device memory",
      two_on_each, both);
  failing_call("cudaLaunchKernelExC", 4, "cudaErrorLaunchFailure, device/cuda_reduce.cu:");
  set_setting("ACCDP_MPI_CUDA", "auto");
  failing_call("cudaLaunchKernelExC", 2, "cudaErrorLaunchFailure, device/cuda_reduce.cu:");
  failing_call("cudaMemcpyAsync", 5, "cudaMemcpyAsync(to, from, bytes", {0, 0, 0, 1});
  failing_call("cudaMemcpyAsync", 7, "cudaMemcpyAsync(to, from, bytes");
  failing_call("cudaEventSynchronize", 2, "cudaEventSynchronize(event.get())");
}
