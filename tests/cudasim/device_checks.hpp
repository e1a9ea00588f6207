#pragma once
// The collectives of one group on device memory, each checked against what it must give. Inputs are written, and
// results read, by work on a stream of the test's own, as a training script's would be: nothing but the collectives'
// own ordering keeps them from reading too early or writing too late.
#include <memory>

#include "base/keep.hpp"
#include "cudasim.hpp"
#include "device/cuda.hpp"
#include "gpu/device_collectives.hpp"
#include "gpu/device_messages.hpp"
#include "gpu/readers.hpp"
#include "group_checks.hpp"

constexpr int kDevice = 0;

/// Of a group that outlives it.
std::shared_ptr<DevicePath> device_path(Group& group);

/// A group's device path and the stream that its callers work on.
class Gpu {
 public:
  explicit Gpu(Group& group) : group(group), path(device_path(group)), stream_(make_stream()) {}
  /// The argument `via` of one call.
  DeviceCollectives via() const { return {path, kDevice, reinterpret_cast<std::uintptr_t>(stream_.get())}; }
  cudaStream_t stream() const { return stream_.get(); }
  void synchronize() const { accdp::synchronize(stream()); }
  /// An operation's memory, and what the stream copied to it: kept for ever where the device may go on with it for
  /// ever.
  template <class Host>
  void take_back(DeviceBuffer memory, Host host) const {
    if (!memory.data()) return;
    if (path->settle()) return drain(stream());
    keep_for_ever(std::move(memory));
    keep_for_ever(std::move(host));
  }

  Group& group;
  std::shared_ptr<DevicePath> path;

 private:
  Stream stream_;
};

/// Numbers on the device, written there by the stream.
class Array {
 public:
  Array(const Gpu& gpu, Ints values) : gpu_(&gpu), host_(std::move(values)), device_(host_.size() * kBytes + 1) {
    copy_async(device_.data(), host_.data(), host_.size() * kBytes, gpu.stream());
  }
  Array(Array&&) = default;
  ~Array() { gpu_->take_back(std::move(device_), std::move(host_)); }
  /// Room for `count` numbers.
  Array(const Gpu& gpu, std::size_t count) : Array(gpu, Ints(count, -1)) {}
  Bytes bytes() const { return {device_.data(), host_.size() * kBytes}; }
  Ints values() const {
    Ints found(host_.size());
    copy_async(found.data(), device_.data(), found.size() * kBytes, gpu_->stream());
    gpu_->synchronize();
    return found;
  }

 private:
  static constexpr std::size_t kBytes = sizeof(std::int32_t);
  const Gpu* gpu_;
  Ints host_;  // outlives the copy from it
  DeviceBuffer device_;
};

std::vector<Array> arrays(const Gpu& gpu, const std::function<Ints(int)>& make);
std::vector<Bytes> writable(const std::vector<Array>& list);
std::vector<ConstBytes> readable(const std::vector<Array>& list);

/// A call that fails on rank `failing` with an error of CUDA's that names its cause: all ranks hear of it, by name, and
/// the group stays broken. inject: makes it fail.
void fails_on_all(const Gpu& gpu, int failing, const std::function<void()>& inject, const char* text,
                  const std::function<void()>& call);

void one_block_on_device(const Gpu& gpu, std::size_t count);
void many_blocks_on_device(const Gpu& gpu, std::size_t count);
void messages_on_device(const Gpu& gpu, std::size_t count);

/// Counts around slices, the flat size (64 Ki elements), and slots of 64 KiB and 1 MiB.
constexpr std::size_t kDeviceCounts[] = {0, 1, 1000, (64 << 10) + 1, 300'001};

void everything_on_device(const Gpu& gpu);

/// What copies of all ranks brought from other GPUs during `work`, in bytes.
std::size_t bytes_over_links(const Gpu& gpu, const std::function<void(DeviceCollectives&)>& work);
