// Collectives among several ranks on each of several GPUs that reach each other: what all ranks of a GPU contribute or
// want passes between GPUs once.
#include <map>

#include "device_checks.hpp"

using Gpus = std::vector<int>;  // of each rank

void run(const Gpus& gpu_of, const std::function<void(const Gpu&)>& check) {
  CHECK(run_ranks(static_cast<int>(gpu_of.size()), [&](Group& group) {
    cudasim::set_devices(1, gpu_of[group.rank()]);
    cudasim::set_jitter(20, 4);
    const Gpu gpu(group);
    one_block_on_device(gpu, 10);
    CHECK(gpu.path->describe().find("peer GPUs, ordered by") == 0);
    check(gpu);
  }));
}

void each_byte_once(const Gpus& gpu_of) {
  run(gpu_of, [&](const Gpu& gpu) {
    Group& group = gpu.group;
    std::map<int, int> ranks_on;
    for (int number : gpu_of) ++ranks_on[number];
    const std::size_t gpus = ranks_on.size(), count = 300'001, bytes = count * sizeof(std::int32_t);
    const int rank = group.rank(), size = group.size();

    const Array data(gpu, rank == 1 ? input(1, count) : Ints(count));
    CHECK(bytes_over_links(gpu, [&](auto& via) { group.bcast(data.bytes(), kType, 1, -1, via); }) ==
          (gpus - 1) * bytes);
    CHECK(data.values() == input(1, count));

    const Array mine(gpu, input(rank, count));
    const std::vector<Array> all = arrays(gpu, [&](int) { return Ints(count); });
    const auto gather = [&](auto& via) { group.allgather(mine.bytes(), writable(all), kType, -1, via); };
    CHECK(bytes_over_links(gpu, gather) == size * (gpus - 1) * bytes);
    for (int r = 0; r < size; ++r) CHECK(all[r].values() == input(r, count));

    // Each slice of the sum; contributions are read by kernels, which are not counted.
    const auto sum = [&](auto& via) { group.allreduce(mine.bytes(), mine.bytes(), kType, ReduceOp::kSum, -1, via); };
    CHECK(bytes_over_links(gpu, sum) == (gpus - 1) * bytes);
    CHECK(mine.values() == sum_of_inputs(size, count));
  });
}

/// A call that fails on a rank while another works for it is heard of on all.
void failing_call(const char* call, int nth, const char* text) {
  run({0, 0, 1, 1}, [&](const Gpu& gpu) {
    Group& group = gpu.group;
    const Array data(gpu, input(group.rank(), 300'000));
    DeviceCollectives via = gpu.via();
    auto allreduce = [&] { group.allreduce(data.bytes(), data.bytes(), kType, ReduceOp::kSum, -1, via); };
    const auto inject = [&] { cudasim::fail(call, cudaErrorLaunchFailure, nth); };
    fails_on_all(gpu, 2, inject, text, allreduce);
  });
}

int main() {
  set_setting("ACCDP_GPU_SLOT_BYTES", "64k");
  for (const Gpus& gpu_of : {Gpus{0, 0, 0, 1}, {0, 1, 1, 0, 2}, {0, 0, 0, 1, 1, 1}, {0, 1, 1}})
    run(gpu_of, everything_on_device);
  set_setting("ACCDP_GPU_SLOT_BYTES", "1M");
  for (const Gpus& gpu_of : {Gpus{0, 0, 0, 1}, {0, 0, 1, 1, 2, 2}, {0, 1}}) each_byte_once(gpu_of);
  // The first reduces on the own GPU, the second over GPUs; copies to its slot, to the caller, of the other's lane.
  for (int nth : {1, 2, 3}) failing_call("cudaLaunchKernelExC", nth, "cudaErrorLaunchFailure, device/cuda_reduce.cu:");
  for (int nth : {1, 2, 4}) failing_call("cudaMemcpyAsync", nth, "cudaMemcpyAsync(to, from, bytes");
}
