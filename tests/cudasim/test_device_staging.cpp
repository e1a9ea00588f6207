// Copies in the host of what is on a device: fetched behind what the device has yet to do, and given up after it.
#include <cstring>

#include "device_checks.hpp"
#include "gpu/pinned_pool.hpp"
#include "gpu/staging.hpp"

namespace {
constexpr std::size_t kCount = 10'000;

/// Host copies that another thread fetches wait for what the caller's stream had been given by the mark.
void behind_a_mark() {
  CHECK(run_ranks(1, [](Group& group) {
    const Gpu gpu(group);
    const Array data(gpu, Ints(kCount)), late(gpu, input(1, kCount));
    gpu.path->admit(kDevice, reinterpret_cast<std::uintptr_t>(gpu.stream()));
    gpu.synchronize();
    cudasim::call_in_stream(gpu.stream(), [](void*) { usleep(200'000); }, nullptr);
    copy_async(data.bytes().data(), late.bytes().data(), data.bytes().size(), gpu.stream());
    const StreamMark mark(kDevice, reinterpret_cast<std::uintptr_t>(gpu.stream()));
    const auto copies = gpu.path->fetch_behind(mark, {{data.bytes(), true, false}}, nullptr);
    const Ints wanted = input(1, kCount);
    CHECK(std::memcmp(copies->blocks()[0].data(), wanted.data(), data.bytes().size()) == 0);
  }));
}

/// Pinned memory that staged chunks leave is nobody's before the device has it no more.
void staged_chunks_leave() {
  const Stream stream = make_stream();
  constexpr std::size_t kChunk = 64 << 10;
  for (std::size_t chunks : {1, 2, 3}) {
    const std::size_t bytes = chunks * kChunk;
    const DeviceBuffer in(bytes), out(bytes);
    std::memset(in.data(), 3, bytes);
    std::memset(out.data(), 0, bytes);
    Staging staging;
    std::size_t seen = 0;
    staging.in_chunks({in.data(), bytes}, {out.data(), bytes}, kChunk, stream.get(), [&](ConstBytes, Bytes) {
      if (++seen == chunks) cudasim::call_in_stream(stream.get(), [](void*) { usleep(200'000); }, nullptr);
    });
    if (const PinnedLease next = hold_pinned(std::min<std::size_t>(chunks, 2) * kChunk))
      std::memset(next.data(), 9, next.span().size());
    synchronize(stream.get());
    for (std::size_t i = 0; i < bytes; ++i) CHECK(out.data()[i] == std::byte{3});
  }
}

/// A staged call that fails ends, for who gave it memory, when the device has done what it was given.
void staged_call_settles() {
  set_setting("ACCDP_GPU_PATH", "staged");
  CHECK(run_ranks(2, [](Group& group) {
    const Gpu gpu(group);
    Array data(gpu, input(group.rank(), kCount));
    const auto sum = [&](DeviceCollectives& via) {
      group.allreduce(data.bytes(), data.bytes(), kType, ReduceOp::kSum, -1, via);
    };
    {
      DeviceCollectives via = gpu.via();
      sum(via);
    }
    gpu.synchronize();
    Ints twice = sum_of_inputs(2, kCount);
    for (auto& one : twice) one *= 2;
    auto owner = std::make_shared<int>();
    {
      DeviceCollectives via(gpu.path, kDevice, reinterpret_cast<std::uintptr_t>(gpu.stream()), std::move(owner));
      cudasim::set_jitter(400'000);
      cudasim::fail("cudaStreamWaitEvent", cudaErrorLaunchFailure, 2);
      CHECK_THROWS(sum(via), Error, "cudaErrorLaunchFailure");
    }
    Ints now(kCount);
    std::memcpy(now.data(), data.bytes().data(), data.bytes().size());
    CHECK(now == twice);
    cudasim::set_jitter(0);
    gpu.synchronize();
  }));
  set_setting("ACCDP_GPU_PATH", "auto");
}
/// The host's copy of what the device has changed since it was fetched, in part, is fetched anew, and behind that.
void changed_since() {
  CHECK(run_ranks(1, [](Group& group) {
    const Gpu gpu(group);
    const Array data(gpu, input(1, kCount));
    const auto stream = reinterpret_cast<std::uintptr_t>(gpu.stream());
    gpu.path->admit(kDevice, stream);
    const auto copies = gpu.path->fetch(kDevice, stream, {{data.bytes(), false, true, true}});
    const Bytes copy = copies->blocks()[0];
    DeviceTensors& device = copies->on_device();
    device.fetch({copy.subspan(400, 8)});
    Ints wanted = input(9, kCount);
    cudasim::set_jitter(50'000);
    device.decode(nullptr, kType, bytes(wanted),
                  {{copy.first(4000), copy.subspan(4000)}, {}, kType});  // with the next batch
    device.fetch({copy});
    CHECK(std::memcmp(copy.data(), wanted.data(), copy.size()) == 0);
    std::memset(copy.data(), 1, 4);  // what is not the host's to write
    device.finish();
    copies->deliver();
    cudasim::set_jitter(0);
    gpu.synchronize();
    CHECK(data.values() == wanted);
  }));
}
}  // namespace

int main() {
  behind_a_mark();
  changed_since();
  CHECK(fork_ranks(1, [](int) { staged_chunks_leave(); }));  // processes forked later must not have what it keeps
  staged_call_settles();
}
