// What the first call sets up is all that later ones need; none leaves an error to who asks CUDA for the last one. And
// MPI on device memory: behind what the caller's stream has yet to do.
#include "over_gpus.hpp"

namespace {

void all_is_set_up() {
  CHECK(run_ranks(4, [](Group& group) {
    const Gpu gpu(group);
    const std::size_t count = 300'001;
    const Array data(gpu, input(group.rank(), count));
    DeviceCollectives via = gpu.via();
    group.allreduce(data.bytes(), data.bytes(), kType, ReduceOp::kSum, -1, via);  // copies of several pieces at once
    gpu.synchronize();
    CHECK(data.values() == sum_of_inputs(4, count));
    CHECK(cudasim::late_loads() == 0);
    cudasim::set_jitter(5000);
    group.allreduce(data.bytes(), data.bytes(), kType, ReduceOp::kSum, -1, via);
    CHECK(gpu.path->settle());
    gpu.synchronize();
    CHECK(cudaGetLastError() == cudaSuccess);
  }));
}

/// Calls like the one before allocate nothing.
void nothing_new() {
  set_setting("ACCDP_MPI_CUDA", "on");
  run(
      {0, 0, 1, 1}, "shared GPU on each of 2 nodes", [](int) {},
      [](const Gpu& gpu) {
        const Array data(gpu, input(gpu.group.rank(), 300'000));
        DeviceCollectives via = gpu.via();
        int made = 0;
        for (int turn = 0; turn < 4; ++turn) {
          gpu.group.allreduce(data.bytes(), data.bytes(), kType, ReduceOp::kMax, -1, via);
          if (turn == 1) made = cudasim::calls("cudaMalloc");
        }
        gpu.synchronize();
        CHECK(cudasim::calls("cudaMalloc") == made);
      });
  set_setting("ACCDP_MPI_CUDA", "auto");
}

/// MPI writes into device memory, or reads it, only once the caller's stream has done with it.
void messages_behind_the_stream() {
  set_setting("ACCDP_MPI_CUDA", "on");
  run(
      {0, 1}, "shared GPU on each of 2 nodes", [](int) {},
      [](const Gpu& gpu) {
        const std::size_t count = 100'000;
        const int rank = gpu.group.rank();
        one_block_on_device(gpu, 10);
        const Array memory(gpu, input(rank, count)), other(gpu, count);
        const auto stream = reinterpret_cast<std::uintptr_t>(gpu.stream());
        gpu.synchronize();
        cudasim::call_in_stream(gpu.stream(), [](void*) { usleep(200'000); }, nullptr);
        if (rank == 0) {
          copy_async(memory.bytes().data(), other.bytes().data(), 4 * count, gpu.stream());  // what is sent
          send_from_device(gpu.group, kDevice, stream, memory.bytes(), 1, 4, -1);
        } else {
          copy_async(other.bytes().data(), memory.bytes().data(), 4 * count, gpu.stream());  // what is read before
          usleep(50'000);
          receive_to_device(gpu.group, kDevice, stream, memory.bytes(), 0, 4, -1);
          CHECK(other.values() == input(1, count) && memory.values() == Ints(count, -1));
        }
        gpu.synchronize();
      });
  set_setting("ACCDP_MPI_CUDA", "auto");
}

}  // namespace

int main() {
  all_is_set_up();
  messages_behind_the_stream();
  set_setting("ACCDP_GPU_SLOT_BYTES", "64k");
  nothing_new();
}
