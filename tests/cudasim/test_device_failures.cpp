// What goes wrong on the device or between callers: every rank hears of it, by name, and nobody hangs.
#include <thread>

#include "device_checks.hpp"

constexpr std::size_t kCount = 300'000;  // several pieces

void allreduce(const Gpu& gpu, const Array& data) {
  DeviceCollectives via = gpu.via();
  gpu.group.allreduce(data.bytes(), data.bytes(), kType, ReduceOp::kSum, -1, via);
}

/// Rank 1's call of that name fails in the middle of an allreduce; its own error and what rank 0 hears name the cause.
void failing_call(const char* call, int nth, const char* text) {
  CHECK(run_ranks(2, [&](Group& group) {
    Gpu gpu(group);
    Array data(gpu, input(group.rank(), kCount));
    allreduce(gpu, data);
    const auto inject = [&] { cudasim::fail(call, cudaErrorLaunchFailure, nth); };
    fails_on_all(gpu, 1, inject, text, [&] { allreduce(gpu, data); });
  }));
}

/// A call that fails while the device is still to do what it was given ends, for who gave it memory, after that.
void settles(bool fails) {
  CHECK(run_ranks(2, [&](Group& group) {
    Gpu gpu(group);
    Array data(gpu, input(group.rank(), kCount));
    allreduce(gpu, data);
    auto owner = std::make_shared<int>();
    const std::weak_ptr<int> kept = owner;
    static std::atomic<bool> may_go_on, is_done;
    may_go_on = is_done = false;
    const auto is_late = [](void*) {
      while (!may_go_on) usleep(1000);
      is_done = true;
    };
    cudasim::call_in_stream(gpu.stream(), is_late, nullptr);
    std::thread later;
    {
      DeviceCollectives via(gpu.path, kDevice, reinterpret_cast<std::uintptr_t>(gpu.stream()), std::move(owner));
      if (fails) cudasim::fail("cudaMemcpyAsync", cudaErrorLaunchFailure, 2);
      const auto call = [&] { group.allreduce(data.bytes(), data.bytes(), kType, ReduceOp::kSum, -1, via); };
      if (fails)
        CHECK_THROWS(call(), Error, "cudaErrorLaunchFailure");
      else
        call();
      CHECK(!is_done);
      if (fails)
        later = std::thread([] {
          usleep(100'000);
          may_go_on = true;
        });
    }
    CHECK(is_done == fails);  // else the stream keeps the order
    CHECK(kept.expired());
    may_go_on = true;
    if (later.joinable()) later.join();
    gpu.synchronize();
  }));
}

/// Rank 1 cannot fetch what it is to broadcast, and the others wait for it.
void cannot_fetch() {
  CHECK(run_ranks(2, [](Group& group) {
    Gpu gpu(group);
    const Array data(gpu, input(1, kCount));
    gpu.synchronize();
    const auto call = [&] {
      const std::unique_ptr<HostCopies> copies =
          gpu.path->fetch(kDevice, reinterpret_cast<std::uintptr_t>(gpu.stream()), {{data.bytes(), true, false}});
      group.bcast_stream({{copies->blocks()[0], kType}}, 1, stream_options("none", 8192, ""));
    };
    const auto inject = [] { cudasim::fail_always("cudaMemcpyAsync", cudaErrorLaunchFailure); };
    if (group.rank() == 1) inject();
    if (group.rank() == 1)
      CHECK_THROWS(call(), CudaError, group.here() + ": memory of its device cannot be fetched: cudaMemcpyAsync");
    else
      CHECK_THROWS(call(), Error, "memory of its device cannot be fetched");
  }));
}

/// Rank 1's GPU has no code for the kernels that look at what is to be encoded.
void cannot_compress() {
  CHECK(run_ranks(2, [](Group& group) {
    if (group.rank() == 1) cudasim::set_gpu(70);
    Gpu gpu(group);
    const Array data(gpu, input(1, kCount));
    gpu.synchronize();
    const auto call = [&] {
      const std::unique_ptr<HostCopies> copies = gpu.path->fetch(
          kDevice, reinterpret_cast<std::uintptr_t>(gpu.stream()), {{data.bytes(), false, false, true}});
      StreamOptions options = stream_options("fpk", 8192, "");
      options.on_device = &copies->on_device();
      group.bcast_stream({{copies->blocks()[0], kType}}, 1, options);
    };
    CHECK_THROWS(call(), Error,
                 "simulated has compute capability 7.0: expected 7.5 or more, for which accdp was built");
  }));
}

int main() {
  set_setting("ACCDP_GPU_SLOT_BYTES", "128k");
  failing_call("cudaLaunchKernelExC", 2, "cudaErrorLaunchFailure, device/cuda_reduce.cu:");
  failing_call("cudaLaunchKernelExC", 3, "cudaErrorLaunchFailure, device/cuda_copies.cu:");
  failing_call("cudaMemcpyAsync", 3, "cudaMemcpyAsync(to, from, bytes");
  failing_call("cudaEventRecord", 3, "cudaEventRecord(event.get(), stream)");
  failing_call("cudaStreamWaitEvent", 4, "cudaStreamWaitEvent(later");

  settles(true);
  settles(false);
  cannot_fetch();
  cannot_compress();

  // One rank hands in host memory.
  CHECK(run_ranks(2, [](Group& group) {
    Gpu gpu(group);
    Array data(gpu, input(0, 5));
    Ints host(5);
    const char* text = "rank 1 (pid";
    if (group.rank() == 0)
      CHECK_THROWS(allreduce(gpu, data), MismatchError, text);
    else
      CHECK_THROWS(group.allreduce(bytes(host), bytes(host), kType, ReduceOp::kSum), MismatchError, "in device memory");
    gpu.synchronize();
  }));

  // What is refused before anything is sent leaves the group as it was.
  CHECK(run_ranks(2, [](Group& group) {
    Gpu gpu(group);
    Array data(gpu, input(group.rank(), kCount)), small(gpu, 3);
    cudasim::set_capturing(true);
    CHECK_THROWS(gpu.via(), UsageError, "captured into a CUDA graph");
    CHECK_THROWS(send_from_device(group, 0, 0, data.bytes(), 0, 1, -1), UsageError, "captured into a CUDA graph");
    CHECK_THROWS(receive_to_device(group, 0, 0, data.bytes(), 0, 1, -1), UsageError, "captured into a CUDA graph");
    cudasim::set_capturing(false);
    DeviceCollectives via = gpu.via();
    cudasim::set_devices(2);
    CHECK_THROWS(DeviceCollectives(gpu.path, 1, 0), UsageError, "a buffer on device 1: expected device 0");
    CHECK_THROWS(group.allreduce(data.bytes(), small.bytes(), kType, ReduceOp::kSum, -1, via), UsageError,
                 "out has 12");
    allreduce(gpu, data);
    CHECK(data.values() == sum_of_inputs(2, kCount));
  }));

  // Sizes of an alltoall that do not fit are named.
  CHECK(run_ranks(2, [](Group& group) {
    Gpu gpu(group);
    const std::vector<Array> out = arrays(gpu, [&](int q) { return input(q, q == group.rank() ? 2 : 3); });
    const std::vector<Array> in = arrays(gpu, [&](int q) { return Ints(q == group.rank() ? 2 : 4); });
    DeviceCollectives via = gpu.via();
    CHECK_THROWS(group.alltoall(readable(out), writable(in), kType, -1, via), MismatchError, "sends 12 bytes to rank");
    gpu.synchronize();
  }));

  // Groups that come and go leave one pool behind, which the next one uses again.
  Segment segments[] = {Segment(2), Segment(2), Segment(2)};
  struct Meeting {
    std::atomic<int> arrived{0};
    std::atomic<int> pids[2];
  };
  Shared<Meeting> meeting;
  CHECK(fork_ranks(2, [&](int rank) {
    meeting->pids[rank] = getpid();
    meeting->arrived++;
    while (meeting->arrived < 2) usleep(100);
    int left = -1;
    for (const Segment& segment : segments) {
      {
        const std::vector<Peer> peers{{"host", meeting->pids[0], 0, 0}, {"host", meeting->pids[1], 0, 0}};
        Group group("test", rank, peers, segment.fd(), 30, nullptr);
        Gpu gpu(group);
        Array data(gpu, input(rank, kCount));
        allreduce(gpu, data);
        CHECK(data.values() == sum_of_inputs(2, kCount));
      }
      CHECK(await_readers(std::chrono::seconds(10)));  // and lets go of what it was asked by
      CHECK(left < 0 || cudasim::live_objects() == left);
      left = cudasim::live_objects();
    }
    CHECK(left == 4);  // its memory, an event of each half, and that of its reads
  }));
}
