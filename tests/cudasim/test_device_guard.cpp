// Messages of another device than the caller's current one: that stays current, if it is used at all, however they
// end. Nor do they disturb what another thread captures into a graph.
#include <thread>

#include "device_checks.hpp"
#include "gpu/device_collectives.hpp"
#include "gpu/device_messages.hpp"
#include "gpu/pinned_pool.hpp"

namespace {

constexpr int kOther = 1;
constexpr std::size_t kBytes = 100'000;

int current() {
  int device;
  ACCDP_CUDA(cudaGetDevice(&device));
  return device;
}

void receive(Group& group, Bytes data, int tag, double timeout_s) {
  receive_to_device(group, kOther, 0, data, 0, tag, timeout_s);
}
void send(Group& group, ConstBytes data, int tag) { send_from_device(group, kOther, 0, data, 0, tag, 5); }

/// Helpers drop what calls have left; to them the first device is current, which this process does not use.
void end_on_a_thread_without_device(Group& group) {
  const DeviceGuard guard(kOther);
  const DeviceBuffer memory(kBytes);
  auto path = device_path(group);
  path->admit(kOther, 0);
  auto copies = path->fetch(kOther, 0, {{Bytes(memory.data(), kBytes), true, false}});
  set_setting("ACCDP_GPU_PINNED_BYTES", "0");  // what they are in is freed
  std::thread([&] {
    copies.reset();
    CHECK(path->settle());
    path.reset();
  }).join();
  set_setting("ACCDP_GPU_PINNED_BYTES", "64M");
}

}  // namespace

int main() {
  cudasim::set_devices(2);
  {
    const DeviceGuard guard(kOther);
    CHECK(current() == kOther);
  }
  Group group("test", 0, {{"host", getpid(), 0, 0}}, -1, 30, nullptr);
  end_on_a_thread_without_device(group);
  CHECK(!cudasim::has_context(0));  // to go back there would take memory of a device that is not used
  ACCDP_CUDA(cudaSetDevice(0));
  std::optional<DeviceBuffer> memory;
  {
    const DeviceGuard guard(kOther);
    CHECK(current() == kOther);
    memory.emplace(kBytes);
  }
  const Bytes data(memory->data(), kBytes);
  const auto stays = [](auto call) {
    CHECK(current() == 0);
    call();
    CHECK(current() == 0);
  };
  stays([&] { send(group, data, 1); });
  stays([&] { receive(group, data, 1, 5); });
  stays([&] { CHECK_THROWS(receive(group, data, 2, 0.02), PeerTimeout, "Timed out"); });
  for (const char* call : {"cudaMemcpyAsync", "cudaEventRecord", "cudaEventSynchronize"})
    stays([&] {
      cudasim::fail(call, cudaErrorLaunchFailure);
      CHECK_THROWS(send(group, data, 3), CudaError, call);
    });
  synchronize(cudaStream_t{});  // the device has done with what the messages before left
  stays([&] {
    set_setting("ACCDP_GPU_PINNED_BYTES", "0");  // to go through memory that is not pinned is no way out of this error
    CHECK(!hold_pinned(kBytes));                 // what was left is freed
    set_setting("ACCDP_GPU_PINNED_BYTES", "64M");
    cudasim::fail("cudaHostAlloc", cudaErrorLaunchFailure);
    CHECK_THROWS(send(group, data, 3), CudaError, "cudaHostAlloc");
  });
  cudasim::set_capturing(true);
  stays([&] { CHECK_THROWS(send(group, data, 3), UsageError, "captured"); });
  cudasim::set_capturing(false);
  // The default stream beside one that is captured and does not begin before what the default one holds.
  cudasim::fail("cudaStreamIsCapturing", cudaErrorStreamCaptureImplicit);
  stays([&] { CHECK_THROWS(send(group, data, 3), UsageError, "captured"); });
  cudasim::set_capturing_elsewhere(true);
  CHECK_THROWS(PinnedBuffer(8), CudaError, "cudaHostAlloc");
  stays([&] { send(group, data, 5); });
  stays([&] { receive(group, data, 5, 5); });
  CHECK_THROWS(PinnedBuffer(8), CudaError, "cudaHostAlloc");
  std::thread([] {  // one that has used no device yet
    const DeviceGuard guard(0);
    const PinnedBuffer memory(8);
  })
      .join();
  cudasim::set_capturing_elsewhere(false);
  send(group, data.first(10), 4);
  stays([&] { CHECK_THROWS(receive(group, data, 4, 5), MismatchError, "sends 10 bytes"); });
}
