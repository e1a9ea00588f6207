// The simulator itself: work on streams is late unless something waits for it, across processes too, and nothing of it
// is left behind. Tests of the product rest on this.
#include "cudasim.hpp"

#include <cstring>

#include "device/cuda.hpp"
#include "device/cuda_report.hpp"
#include "ranks.hpp"

using namespace accdp;

/// What `reader` saw of a number that `writer` was told to put there, but could not until the host let it.
int seen_by_other_stream(bool ordered) {
  const Stream writer = make_stream(), reader = make_stream();
  const Event event = make_event();
  const DeviceBuffer place(sizeof(int));
  const int before = 0, after = 7;
  int seen = -1;
  std::atomic<bool> released{false};
  copy_async(place.data(), &before, sizeof(int), writer.get());
  synchronize(writer.get());
  cudasim::call_in_stream(
      writer.get(), [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &released);
  copy_async(place.data(), &after, sizeof(int), writer.get());
  if (ordered) {
    record(event, writer.get());
    wait_for(reader.get(), event);
  }
  copy_async(&seen, place.data(), sizeof(int), reader.get());
  if (!ordered) synchronize(reader.get());
  CHECK(is_busy(writer.get()) && is_busy(reader.get()) == ordered);
  released = true;
  released.notify_all();
  synchronize(reader.get());
  synchronize(writer.get());
  return seen;
}

struct Exported {
  std::atomic<int> stage{0};
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

void wait_for_stage(const Shared<Exported>& exported, int stage) {
  while (exported->stage < stage) usleep(100);
}

/// Rank 0 writes late; rank 1 maps that memory and waits for that event.
void pass_on(const Shared<Exported>& exported, int rank) {
  const Stream stream = make_stream();
  int number = 41, seen = -1;
  if (rank == 0) {
    const DeviceBuffer place(sizeof(int));
    const Event event = make_event(true);
    exported->memory = place.share();
    ACCDP_CUDA(cudaIpcGetEventHandle(&exported->event, event.get()));
    CHECK_THROWS(open_memory(exported->memory), CudaError, "cudaIpcOpenMemHandle");  // by its own process
    cudasim::set_jitter(5000);
    for (int i = 0; i < 10; ++i) copy_async(place.data(), &number, sizeof(int), stream.get());
    record(event, stream.get());
    exported->stage = 1;
    wait_for_stage(exported, 2);
  } else {
    wait_for_stage(exported, 1);
    const IpcMapping place = open_memory(exported->memory);
    const Event event = open_event(exported->event);
    wait_for(stream.get(), event);
    copy_async(&seen, place.get(), sizeof(int), stream.get());
    ACCDP_CUDA(cudaStreamSynchronize(stream.get()));
    CHECK(seen == 41);
    exported->stage = 2;
  }
}

int main() {
  CHECK(seen_by_other_stream(true) == 7);
  CHECK(seen_by_other_stream(false) == 0);
  CHECK(cudasim::live_objects() == 0);

  cudasim::fail("cudaMalloc", cudaErrorMemoryAllocation, 2);
  const DeviceBuffer first(8);
  CHECK_THROWS(DeviceBuffer(8), CudaError, "out of memory (cudaErrorMemoryAllocation, device/cuda_runtime.cpp:");
  const DeviceBuffer third(8);

  const PinnedBuffer pinned(8);
  CHECK_THROWS(device_of(reinterpret_cast<std::uintptr_t>(pinned.data()), "x"), UsageError, "x: expected memory of a");
  CHECK(device_of(reinterpret_cast<std::uintptr_t>(first.data() + 7), "x") == 0);
  CHECK(cuda_report().devices == 1 && cuda_report().why_not.empty());
  cudasim::set_gpu(70);
  CHECK(cuda_report().devices == 1 && cuda_report().why_not.find("compute capability 7.0") != std::string::npos);
  cudasim::set_gpu(75);
  CHECK(cuda_report().why_not.empty());

  Shared<Exported> exported;
  CHECK(fork_ranks(2, [&](int rank) { pass_on(exported, rank); }));
  cudasim::set_devices(0);
  CHECK(cuda_report().why_not.find("cudaErrorNoDevice") != std::string::npos);
}
