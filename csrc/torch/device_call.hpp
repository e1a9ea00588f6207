#pragma once
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/birthplace.hpp"
#include "coll/device_route.hpp"

namespace accdp::torch_backend {

// c10's streams and events for any type of device: nothing here is compiled or linked against CUDA.

/// One operation on tensors of a device: the stream that it runs on, what it begins after, and what comes after it.
class DeviceCall {
 public:
  /// Begins after what the device's current stream holds now. route: outlives this. own: the stream of operations that
  /// the caller does not wait for; none: the operation runs in the order of the current stream.
  DeviceCall(DeviceRoute& route, c10::Device device, std::optional<c10::Stream> own);
  DeviceCall(const DeviceCall&) = delete;
  ~DeviceCall();

  /// What it does. Tensors in it are kept until the device has done the operation, or, where the caller waits on the
  /// stream that the call was made on, until that stream is made to wait: their memory is used again in its order.
  void carry(std::function<void()> operation);
  /// Hands the operation to the device, once, on any thread; its stream is the thread's current one meanwhile.
  void run();
  /// What the current stream gets from now on begins after the operation. Does not block the host. After run().
  void join_current_stream();
  bool is_finished() const;  ///< the device has done it
  bool was_handed_over() const { return ran_; }
  void synchronize() const;  ///< blocks the host until then, if it was handed over

  c10::Device device() const { return stream_.device(); }
  c10::Stream stream() const { return stream_; }
  std::uintptr_t handle() const { return reinterpret_cast<std::uintptr_t>(stream_.native_handle()); }
  /// Of the stream that the call was made on.
  std::uintptr_t callers_handle() const { return reinterpret_cast<std::uintptr_t>(callers_.native_handle()); }

 private:
  DeviceRoute& route_;
  const DeviceRoute::Asker ask_;
  c10::Stream callers_, stream_;
  struct Events {
    c10::Event start, done;
  };
  std::optional<Events> events_;  // from the beginning to the end
  const Birthplace birthplace_;
  std::atomic<bool> ran_{false};
  std::mutex mutex_;
  std::function<void()> operation_;
};

/// What a group's calls on tensors of devices share.
class Devices {
 public:
  /// route: none where the group moves host memory only. type: of the devices that it reaches.
  Devices(std::shared_ptr<DeviceRoute> route, c10::DeviceType type);

  /// Of tensors that need not be in host memory.
  std::optional<c10::DeviceType> type() const { return route_ ? std::optional(type_) : std::nullopt; }
  DeviceRoute& route() const { return *route_; }
  /// Throws UsageError where the route refuses the current stream.
  std::shared_ptr<DeviceCall> begin(c10::Device device, bool is_async);
  /// The same for a call without tensors, once there was one with: of that device's current stream.
  void check_current_stream();
  void finish() noexcept;  ///< waits for all that began

 private:
  std::vector<std::shared_ptr<DeviceCall>> take_finished();
  std::shared_ptr<DeviceRoute> route_;
  c10::DeviceType type_;
  std::mutex mutex_;
  std::optional<c10::Device> device_;  // of the calls until now
  std::optional<c10::Stream> own_;
  std::vector<std::shared_ptr<DeviceCall>> under_way_;
};

}  // namespace accdp::torch_backend
