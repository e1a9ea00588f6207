#include "torch/device_call.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "base/keep.hpp"

namespace accdp::torch_backend {
namespace {

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

}  // namespace

DeviceCall::DeviceCall(DeviceRoute& route, c10::Device device, std::optional<c10::Stream> own)
    : route_(route),
      ask_(route.asker()),
      callers_(current_stream(device)),
      stream_(own.value_or(callers_)),
      events_(Events{c10::Event(device.type()), c10::Event(device.type())}) {
  const c10::DeviceGuard on(device);
  if (own) events_->start.record(callers_);
}

/// What c10 does with an event makes the thread's own device current again afterwards, with a context on it where there
/// was none: so that has to be the event's. c10's guard goes back only to a device that has one.
DeviceCall::~DeviceCall() {
  try {
    if (!birthplace_.is_elsewhere()) {
      const c10::DeviceGuard on(device());
      events_.reset();
      return;
    }
  } catch (const c10::Error&) {
  }
  // In a fork, or of a device that has failed, nothing can be closed in order, and c10 would end the process. Nor can
  // memory be let go there: another thread may have had its allocator's lock when the process forked.
  keep_for_ever(std::move(events_));
  keep_for_ever(std::move(operation_));
}

void DeviceCall::carry(std::function<void()> operation) { operation_ = std::move(operation); }

void DeviceCall::run() {
  const c10::StreamGuard on(stream_);
  events_->start.block(stream_);  // nothing where the order is that of the caller's stream
  try {
    operation_();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    if (!route_.settle(true)) {  // the device may go on with the tensors whenever it likes
      std::lock_guard lock(mutex_);
      keep_for_ever(std::move(operation_));
    }
    try {
      events_->done.record(stream_);  // some of it may be under way
      ran_ = true;
    } catch (const c10::Error&) {
      // A device that takes no event does no work either; the first error tells why.
    }
    std::rethrow_exception(error);
  }
  events_->done.record(stream_);
  ran_ = true;
}

void DeviceCall::join_current_stream() {
  const c10::DeviceGuard on(device());
  const c10::Stream current = current_stream(device());
  if (current != stream_) events_->done.block(current);
  if (current != callers_) return;
  std::function<void()> ended;  // dropped without the lock: a tensor's end may wait for the GIL
  std::lock_guard lock(mutex_);
  ended.swap(operation_);
}

bool DeviceCall::is_finished() const {
  return ran_ && ask_(device().index(), [this] { return events_->done.query(); });
}
void DeviceCall::synchronize() const {
  if (!ran_) return;
  // As is_finished() asks: it must leave captures of other threads alone, and be left alone by them.
  ask_(device().index(), [this] {
    events_->done.synchronize();
    return true;
  });
}

Devices::Devices(std::shared_ptr<DeviceRoute> route, c10::DeviceType type) : route_(std::move(route)), type_(type) {}

std::shared_ptr<DeviceCall> Devices::begin(c10::Device device, bool is_async) {
  const c10::Stream current = current_stream(device);
  route_->admit(device.index(), reinterpret_cast<std::uintptr_t>(current.native_handle()));
  std::vector<std::shared_ptr<DeviceCall>> ended;  // dropped without the lock, too
  std::lock_guard lock(mutex_);
  device_ = device;
  ended = take_finished();
  if (!is_async) return std::make_shared<DeviceCall>(*route_, device, std::nullopt);
  // Of those with priority: from the others come the streams that torch captures graphs on.
  if (!own_) own_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, true);
  under_way_.push_back(std::make_shared<DeviceCall>(*route_, device, own_));
  return under_way_.back();
}

/// Who waits by a work's future, or on another stream than the call's, lets go of nothing.
std::vector<std::shared_ptr<DeviceCall>> Devices::take_finished() {
  const auto rest = std::partition(under_way_.begin(), under_way_.end(), [](const auto& call) {
    if (call->is_finished()) return false;
    if (call.use_count() > 1) return true;
    std::atomic_thread_fence(std::memory_order_acquire);  // with whoever gave it up: it had been handed over before
    return call->was_handed_over();                       // else, as of a receive that timed out, it never will be
  });
  std::vector<std::shared_ptr<DeviceCall>> ended(rest, under_way_.end());
  under_way_.erase(rest, under_way_.end());
  return ended;
}

void Devices::check_current_stream() {
  std::vector<std::shared_ptr<DeviceCall>> ended;
  std::unique_lock lock(mutex_);
  if (!device_) return;
  ended = take_finished();
  const c10::Device device = *device_;
  lock.unlock();
  route_->admit(device.index(), reinterpret_cast<std::uintptr_t>(current_stream(device).native_handle()));
}

void Devices::finish() noexcept {
  std::lock_guard lock(mutex_);
  if (!under_way_.empty() && !route_->settle()) {
    TORCH_WARN("accdp: a device does not finish operations with ranks that are gone or have failed");
    return keep_for_ever(std::exchange(under_way_, {}));
  }
  for (const auto& call : under_way_) {
    try {
      call->synchronize();
    } catch (const std::exception& error) {
      TORCH_WARN("accdp: a device did not finish an operation: ", error.what());
    }
  }
  under_way_.clear();
}

}  // namespace accdp::torch_backend
