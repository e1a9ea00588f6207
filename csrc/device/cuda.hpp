#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "base/handle.hpp"
#include "base/types.hpp"

// CUDA: who owns what. Only files named cuda_* and this one know the CUDA runtime; they are left out of builds without
// it. Every owner belongs to the device that was current when it was made.

namespace accdp {

[[noreturn]] void throw_cuda(const char* call, cudaError_t code, const char* file, int line);

/// For calls of the CUDA runtime; throws CudaError with the call's text and place.
#define ACCDP_CUDA(call)                                                                           \
  do {                                                                                             \
    if (const cudaError_t code_ = (call); code_ != cudaSuccess) {                                  \
      static_cast<void>(cudaGetLastError()); /* else it would be reported again by a later call */ \
      ::accdp::throw_cuda(#call, code_, __FILE__, __LINE__);                                       \
    }                                                                                              \
  } while (false)

struct StreamTraits {
  using Raw = cudaStream_t;
  static Raw none() noexcept { return nullptr; }
  static void close(Raw stream) noexcept;
};
struct EventTraits {
  using Raw = cudaEvent_t;
  static Raw none() noexcept { return nullptr; }
  static void close(Raw event) noexcept;
};
struct DeviceMemoryTraits {
  using Raw = void*;
  static Raw none() noexcept { return nullptr; }
  static void close(Raw memory) noexcept;
};
struct PinnedMemoryTraits {
  using Raw = void*;
  static Raw none() noexcept { return nullptr; }
  static void close(Raw memory) noexcept;
};
struct IpcMappingTraits {
  using Raw = void*;
  static Raw none() noexcept { return nullptr; }
  static void close(Raw mapping) noexcept;
};

/// What the stream holds now seems to have no end. Until it has, no owner of this process gives memory back to the
/// driver, which would first wait for all work of the device. Who has events that several processes open must ask, and
/// keep them, too.
void keep_all_memory(cudaStream_t stream) noexcept;
bool keeps_all_memory() noexcept;

using Stream = Handle<StreamTraits>;
using Event = Handle<EventTraits>;
/// Another process's device memory. To be closed before its owner frees it.
using IpcMapping = Handle<IpcMappingTraits>;

/// Runs beside the legacy default stream, not after it. `is_urgent`: the device takes up its kernels before those that
/// wait on other streams.
Stream make_stream(bool is_urgent = false);
/// For ordering, not for timing. `shared`: other processes may open it.
Event make_event(bool shared = false);
cudaIpcEventHandle_t share_event(const Event& event);
Event open_event(const cudaIpcEventHandle_t& handle);
IpcMapping open_memory(const cudaIpcMemHandle_t& handle);

/// An allocation of cudaMalloc, the only kind whose handle other processes can always open.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t bytes);
  std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }
  std::size_t bytes() const { return bytes_; }
  cudaIpcMemHandle_t share() const;

 private:
  Handle<DeviceMemoryTraits> memory_;
  std::size_t bytes_ = 0;
};

/// Page-locked host memory: copies to and from a device run beside the host.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::size_t bytes);
  /// Without memory where the system has no more that can be page-locked.
  static PinnedBuffer if_any(std::size_t bytes);
  std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }
  Bytes span() const { return {data(), bytes_}; }

 private:
  Handle<PinnedMemoryTraits> memory_;
  std::size_t bytes_ = 0;
};

int current_device();
/// Makes a device current for all that this thread does, which leaves alone what others capture (RelaxedCapture).
void use_device(int device);

/// What this thread does in a scope leaves alone what other threads capture into graphs, which would else end with any
/// call that takes memory or looks at an event.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { enter(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  ~RelaxedCapture();
  /// Again, if the constructor could not yet: a thread with no device in use has nothing to exchange.
  void enter() noexcept;
  bool is_entered() const { return is_exchanged_; }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // of the thread, outside of the scope
  bool is_exchanged_ = false;
};

/// Makes a device current for a scope. After it the one before is, unless this process uses that nowhere: to make it
/// current would take some hundred MB of it for a context, and threads begin with device 0.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  DeviceGuard(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  RelaxedCapture relaxed_;
  int before_ = -1;
};
/// For destructors: none where the device has failed.
std::optional<DeviceGuard> guard_if_possible(int device) noexcept;

/// In a scope: what this thread's waits for a device call from time to time. It throws where one has no end.
class WatchedWaits {
 public:
  explicit WatchedWaits(std::function<void()> look);
  WatchedWaits(const WatchedWaits&) = delete;
  ~WatchedWaits();
  void look() const { look_(); }

 private:
  const std::function<void()> look_;
  const WatchedWaits* const outer_;
};

/// Copies between any two places that CUDA knows, in the order of the stream. Nothing where both are the same.
void copy_async(void* to, const void* from, std::size_t bytes, cudaStream_t stream);
/// Whether both addresses of device memory are known to lie in one allocation.
bool is_one_allocation(const void* one, const void* other) noexcept;
/// What runs on `later` from now on starts after what `event` has seen.
void record(const Event& event, cudaStream_t stream);
void wait_for(cudaStream_t later, const Event& event);
/// Makes the host wait: see WatchedWaits.
void synchronize(cudaStream_t stream);
void synchronize(const Event& event);
/// At least so many bytes there. Where it grows its contents are lost, after what `stream` does with them: freeing
/// waits for the device, too, but nothing watches that.
void grow(DeviceBuffer& buffer, std::size_t bytes, cudaStream_t stream);
bool is_busy(cudaStream_t stream);
// For destructors, and for who waits beside others: a failure is somebody else's to report, and ends all work.
void drain(cudaStream_t stream) noexcept;
void drain(const Event& event) noexcept;
bool is_done(cudaStream_t stream) noexcept;
bool is_done(const Event& event) noexcept;
/// What comes next on the stream waits until a word of page-locked memory is `value`, and keeps no part of the device
/// busy meanwhile.
void wait_for_value(cudaStream_t stream, const std::uint32_t* word, std::uint32_t value);
/// Throws UsageError where the stream is being captured into a graph: the work of other ranks cannot be replayed.
void refuse_capture(cudaStream_t stream);

/// Loads a kernel onto the current device: its first launch would, and may wait for all that the device does. What
/// cannot be loaded fails when it is launched.
void load_kernel(const void* kernel) noexcept;
/// Throws where no kernel of this build runs on a device. Makes no context there; takes as long as some launches.
void expect_code(int device);

/// What names a GPU whatever its index in this process.
struct GpuId {
  char uuid[16];
  bool operator==(const GpuId&) const = default;
};
GpuId gpu_id(int device);
std::string gpu_model(int device);  ///< "NVIDIA H100 80GB HBM3", with the slice where it is one of MIG's

}  // namespace accdp
