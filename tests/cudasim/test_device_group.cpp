// Collectives on device memory among processes: through a pool on one GPU, ordered by events or by the host, and
// through host memory where the ranks have no GPU in common.
#include "device_checks.hpp"

/// Runs everything in `size` processes; `prepare` tells the simulator of each rank what its machine is like.
void run(int size, const std::string& path, const std::function<void(int)>& prepare) {
  CHECK(run_ranks(size, [&](Group& group) {
    prepare(group.rank());
    cudasim::set_jitter(20, 4);
    Gpu gpu(group);
    CHECK(gpu.path->describe() == "not used yet");
    everything_on_device(gpu);
    if (gpu.path->describe().find(path) != 0) std::fprintf(stderr, "path: %s\n", gpu.path->describe().c_str());
    CHECK(gpu.path->describe().find(path) == 0);
    // Host memory in the same group, between calls on device memory.
    one_block(group, 1000);
    one_block_on_device(gpu, 1000);
  }));
}

/// What the first call sets up.
void set_up(Group& group) {
  const Gpu gpu(group);
  const Array data(gpu, input(0, 10));
  DeviceCollectives via = gpu.via();
  group.bcast(data.bytes(), kType, 0, -1, via);
  CHECK(cudasim::calls("cudaStreamCreateWithPriority") == (group.size() > 1 ? 2 : 1));  // the pool's, and its probe's
  for (Datatype type : {Datatype::kU8, Datatype::kF16, Datatype::kF32, Datatype::kC128, Datatype::kF8E5M2}) {
    const Bytes values = data.bytes().first(16);
    group.allreduce(values, values, type, ReduceOp::kSum, -1, via);
  }
  gpu.synchronize();
  CHECK(cudasim::late_loads() == 0);
}

/// A long sum takes a step for each piece, and one more: not a step for each phase of a piece. And in each a kernel for
/// the sums and one for all copies.
void steps_of_a_sum(Group& group) {
  constexpr int kPieces = 5;
  const Gpu gpu(group);
  const Array data(gpu, input(group.rank(), kPieces * (64 << 10) / element_bytes(kType)));
  DeviceCollectives via = gpu.via();
  const auto operations = [] { return cudasim::calls("cudaLaunchKernelExC") + cudasim::calls("cudaMemcpyAsync"); };
  const auto sum = [&] { group.allreduce(data.bytes(), data.bytes(), kType, ReduceOp::kSum, -1, via); };
  sum();  // and what is set up
  const int records = cudasim::calls("cudaEventRecord"), before = operations();
  sum();
  // Beside the steps': before and after it for the caller's stream, and behind what was read.
  CHECK(cudasim::calls("cudaEventRecord") == records + kPieces + 1 + 3);
  CHECK(operations() == before + kPieces + kPieces + 2);  // the results of the last piece come after the last step
  gpu.synchronize();
}

/// An empty message and one that is not are told apart in the call itself.
void one_is_empty(Group& group) {
  const Gpu gpu(group);
  const Array first(gpu, Ints(10)), data(gpu, Ints(group.rank() == 0 ? 0 : 10));
  DeviceCollectives via = gpu.via();
  group.bcast(first.bytes(), kType, 0, -1, via);
  CHECK_THROWS(group.bcast(data.bytes(), kType, 0, -1, via), MismatchError, "rank ");
  gpu.synchronize();
}

void one_gpu(int) {}
void a_gpu_each(int rank) { cudasim::set_devices(1, rank); }
void two_on_each_gpu(int rank) { cudasim::set_devices(1, rank / 2); }
void gpus_apart(int rank) {
  a_gpu_each(rank);
  cudasim::set_islands(1);
}

int main() {
  CHECK(run_ranks(2, one_is_empty));
  for (int size : {1, 2}) CHECK(run_ranks(size, set_up));
  set_setting("ACCDP_GPU_SLOT_BYTES", "64k");
  for (int size : {2, 4}) CHECK(run_ranks(size, steps_of_a_sum));
  for (int size : {1, 2, 3, 8, 16}) run(size, "shared GPU, ordered by events", one_gpu);
  // A driver that is older than CUDA's runtime gives us its own functions.
  run(2, "shared GPU, ordered by events", [](int) { cudasim::set_gpu(90, 12020); });
  run(3, "peer GPUs, ordered by events", a_gpu_each);
  run(4, "peer GPUs, ordered by events", two_on_each_gpu);
  run(3, "staged: memory of another GPU cannot be opened", gpus_apart);
  run(3, "staged: memory of another GPU cannot be read", [](int rank) {
    a_gpu_each(rank);
    cudasim::set_garbled_peers(true);
  });
  set_setting("ACCDP_GPU_SLOT_BYTES", "1M");
  run(4, "shared GPU, ordered by events", one_gpu);
  // What drivers may refuse: one rank is enough.
  run(3, "shared GPU, ordered by the host (rank 1: cudaIpcOpenEventHandle(&event, handle) failed", [](int rank) {
    if (rank == 1) cudasim::fail_always("cudaIpcOpenEventHandle", cudaErrorNotSupported);
  });
  run(2, "shared GPU, ordered by the host (rank 0: cudaIpcGetEventHandle", [](int rank) {
    if (rank == 0) cudasim::fail_always("cudaIpcGetEventHandle", cudaErrorNotSupported);
  });
  run(2, "shared GPU, ordered by the host (rank 0: cuStreamWaitValue32 failed", [](int rank) {
    if (rank == 0) cudasim::fail_always("cuStreamWaitValue32", cudaErrorNotSupported);
  });
  run(2, "shared GPU, ordered by the host (rank 0: the driver keeps who hands over work behind cuStreamWaitValue32)",
      [](int rank) { cudasim::keep_callers_behind_values(rank == 0); });
  run(2, "shared GPU, ordered by the host (rank ", [](int) { cudasim::ignore_ipc_events(true); });
  const auto is_stale_on = [](int rank) { return [rank](int me) { cudasim::keep_ipc_events_stale(me == rank); }; };
  run(2, "shared GPU, ordered by the host (rank 1: an event of rank 0 did not hold a stream back)", is_stale_on(1));
  run(3, "shared GPU, ordered by the host (rank 0: an event of rank ", is_stale_on(0));
  run(2, "shared GPU, ordered by the host (rank 1: an event of rank 0 counted as done before it was)",
      [](int rank) { cudasim::take_ipc_events_for_done(rank == 1); });
  const auto follows_on = [](int rank, bool apart) {
    return [=](int me) {
      if (apart) a_gpu_each(me);
      cudasim::renew_ipc_waits(me == rank);
    };
  };
  run(2, "shared GPU, ordered by the host (rank 1: an event of rank 0, recorded anew, held back", follows_on(1, false));
  run(2, "shared GPU, ordered by the host (rank 0: an event of rank 1, recorded anew, held back", follows_on(0, false));
  run(3, "peer GPUs, ordered by the host (rank 2: an event of rank 0, recorded anew, held back", follows_on(2, true));
  // Of every GPU: here only that of the last rank is not heard of.
  run(4, "peer GPUs, ordered by the host (rank ", [](int rank) {
    a_gpu_each(rank);
    if (rank != 3) cudasim::ignore_ipc_events_of(3);
  });
  // A rank that has no other to wait for needs no probe, nor what it takes.
  run(1, "shared GPU, ordered by events",
      [](int) { cudasim::fail_always("cudaHostAlloc", cudaErrorMemoryAllocation); });
  run(3, "staged: memory of another process cannot be opened", [](int rank) {
    if (rank == 2) cudasim::fail("cudaIpcOpenMemHandle", cudaErrorNotSupported);
  });
  // On one of the GPUs no kernel of ours would run.
  run(3, "staged: a rank has no memory to share: simulated has compute capability 7.0: expected 7.5 or more",
      [](int) { cudasim::set_gpu(70); });
  run(2, "staged: a rank has no memory to share", [](int rank) { cudasim::set_gpu(rank == 1 ? 70 : 90); });
  // The first copy is that of what others are to find there.
  run(2, "staged: memory to share cannot be written: cudaMemcpyAsync",
      [](int) { cudasim::fail("cudaMemcpyAsync", cudaErrorNotSupported); });
  run(2, "staged: a rank has no memory to share", [](int rank) {
    if (rank == 1) cudasim::set_largest_allocation((2 << 20) - 1);  // a pool is two slots
  });

  // Over nodes (threads of a process of their own: processes that are forked later must not have what that keeps
  // pinned), and where ranks without a GPU take part with host memory.
  CHECK(fork_ranks(1, [](int) {
    run_nodes({0, 0, 1}, [](Group& group) {
      Gpu gpu(group);
      everything_on_device(gpu);
      CHECK(gpu.path->describe().find("staged: ") == 0);  // memory of the own process cannot be opened
    });
  }));
  set_setting("ACCDP_GPU_PATH", "by_host");  // no event of the others is made, let alone waited for
  run(3, "shared GPU, ordered by the host (rank 0: ACCDP_GPU_PATH=by_host)",
      [](int) { cudasim::lose_ipc_events(true); });
  set_setting("ACCDP_GPU_PATH", "staged");
  CHECK(run_ranks(3, [](Group& group) {
    Gpu gpu(group);
    for (std::size_t count : kDeviceCounts) {
      if (group.rank() == 1) {
        Ints mine = input(1, count);
        group.allreduce(bytes(mine), bytes(mine), kType, ReduceOp::kSum);
        CHECK(mine == sum_of_inputs(3, count));
      } else {
        const Array mine(gpu, input(group.rank(), count));
        DeviceCollectives via = gpu.via();
        group.allreduce(mine.bytes(), mine.bytes(), kType, ReduceOp::kSum, -1, via);
        CHECK(mine.values() == sum_of_inputs(3, count));
      }
    }
    CHECK(group.rank() == 1 || gpu.path->describe() == "staged: ACCDP_GPU_PATH=staged");
  }));
}
