// Collectives and messages on device memory of ranks on several nodes, which share a GPU there.
#include "over_gpus.hpp"

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
  cudasim::set_jitter(20, 4);
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
      const Array on_device(gpu, rank == 0 ? input(0, count) : Ints(count));
      Ints on_host = rank == 0 ? input(0, count) : Ints(count);
      if (rank == 0 && device_sends)
        send_from_device(group, kDevice, stream, on_device.bytes(), other, 6, -1);
      else if (rank == 0)
        group.send_now(bytes(on_host), other, 6);
      else if (device_sends)
        CHECK(group.receive_now(bytes(on_host), other, 6) == other);
      else
        CHECK(receive_to_device(group, kDevice, stream, on_device.bytes(), other, 6, -1) == other);
      if (rank == 1) CHECK((device_sends ? on_host : on_device.values()) == input(0, count));
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
  set_setting("ACCDP_GPU_SLOT_BYTES", "64k");
  unequal_sizes();
  auto alike = [](int) {};
  run({0, 0, 1, 1}, "shared GPU on each of 2 nodes, ordered by events, joined through host memory", alike);
  run({0, 1, 0, 1, 2, 2}, "shared GPU on each of 3 nodes", alike, both);
  run({0, 1, 0, 1, 2, 2}, "shared GPU on each of 3 nodes", alike, one_right_after_another);
  run(
      {0, 0, 1, 1}, "shared GPU on each of 2 nodes, ordered by the host",
      [](int rank) {
        if (rank == 0) cudasim::ignore_ipc_events(true);
        if (rank == 3) cudasim::fail_always("cudaIpcOpenEventHandle", cudaErrorNotSupported);
      },
      both);

  // Nodes with different numbers of ranks, on one GPU each.
  run({0, 0, 0, 1}, "shared GPU on each of 2 nodes", alike, both);
  run({0, 1, 1, 0, 1}, "shared GPU on each of 2 nodes", alike);

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
  failing_call("cudaLaunchKernelExC", 4, "cudaErrorLaunchFailure, device/cuda_reduce.cu:");
  set_setting("ACCDP_MPI_CUDA", "auto");
  failing_call("cudaLaunchKernelExC", 2, "cudaErrorLaunchFailure, device/cuda_reduce.cu:");
  failing_call("cudaMemcpyAsync", 5, "cudaMemcpyAsync(to, from, bytes", {0, 0, 0, 1});
  failing_call("cudaMemcpyAsync", 7, "cudaMemcpyAsync(to, from, bytes");
  failing_call("cudaEventSynchronize", 2, "cudaEventSynchronize(event.get())");
}
