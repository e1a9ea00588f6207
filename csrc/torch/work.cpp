#include "torch/work.hpp"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <algorithm>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/keep.hpp"
#include "base/no_gil.hpp"
#include "node/status.hpp"
#include "node/waiter.hpp"

namespace accdp::torch_backend {
namespace {

thread_local int t_callbacks = 0;  // of works' futures, that this thread is in

template <class Failure>
std::exception_ptr torch_error(const char* text) {
  return std::make_exception_ptr(Failure({__func__, __FILE__, std::uint32_t(__LINE__)}, text));
}

/// What a signal handler raised, which is pending on this thread, in place of Interrupted; all else as it is.
std::exception_ptr with_raised(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const Interrupted&) {
    pybind11::gil_scoped_acquire gil;
    return std::make_exception_ptr(pybind11::error_already_set());  // takes the pending Python exception along
  } catch (...) {
    return error;
  }
}

/// The same as an error that may be thrown again and again, on any thread: Python's own can be handed back once.
std::exception_ptr lasting(std::exception_ptr error) {
  try {
    std::rethrow_exception(with_raised(error));
  } catch (const pybind11::error_already_set& e) {
    return std::make_exception_ptr(Error(std::string("interrupted by ") + e.what()));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

bool raised_later(std::exception_ptr error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (pybind11::error_already_set& e) {
    pybind11::gil_scoped_acquire gil;
    const auto raise = [](void* value) {
      const auto raised = pybind11::reinterpret_steal<pybind11::object>(static_cast<PyObject*>(value));
      PyErr_SetObject(pybind11::type::handle_of(raised).ptr(), raised.ptr());
      return -1;
    };
    PyObject* const value = e.value().inc_ref().ptr();
    if (Py_AddPendingCall(raise, value) == 0) return true;
    Py_DECREF(value);
    return false;
  } catch (...) {
    return false;
  }
}

std::exception_ptr translated(std::exception_ptr error) {
  try {
    std::rethrow_exception(with_raised(error));
  } catch (const UsageError& e) {
    return torch_error<c10::ValueError>(e.what());
  } catch (const Error& e) {
    return torch_error<c10::DistBackendError>(e.what());
  } catch (...) {
    return std::current_exception();
  }
}

bool is_handling_exception() {
  if (!Py_IsInitialized()) return false;
  pybind11::gil_scoped_acquire gil;
  PyObject *type, *value, *trace;
  PyErr_GetExcInfo(&type, &value, &trace);
  const bool found = value && value != Py_None;
  for (PyObject* object : {type, value, trace}) Py_XDECREF(object);
  return found;
}

bool is_in_callback() { return t_callbacks > 0; }

Work::Work(int rank, c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs,
           std::uint64_t sequence)
    // Recording costs an allocation even when nobody listens, so ask first.
    : c10d::Work(rank, type, at::hasCallbacks() ? title : nullptr, std::optional<Tensors>(inputs)),
      outputs_(std::move(outputs)),
      sequence_(sequence) {}

c10::intrusive_ptr<Work> Work::done() {
  auto work = c10::make_intrusive<Work>(-1, c10d::OpType::UNKNOWN, nullptr, Tensors(), Tensors(), 0);
  work->complete();
  return work;
}

/// Callbacks may wait for each other's works, and for their own.
bool Work::is_over() const { return completed_ || (ended_ && is_in_callback()); }

bool Work::wait_returns() const {
  std::lock_guard lock(mutex_);
  return is_over();
}

bool Work::is_done() const {
  std::lock_guard lock(mutex_);
  return is_over() || (future_ && future_->completed());
}

Work::~Work() {
  if (!birthplace_.is_elsewhere()) return;
  keep_for_ever(std::move(outputs_));
  keep_for_ever(std::move(nested_));
  keep_for_ever(std::move(future_));
}

bool Work::has_future() const {
  std::lock_guard lock(mutex_);
  return future_ != nullptr;
}

void Work::check_process() const {
  if (!birthplace_.is_elsewhere()) return;
  throw UsageError("a work of " + c10d::opTypeToString(opType_) +
                   ": expected a call from the process that began it, got one from pid " + std::to_string(getpid()) +
                   ", which was forked from it since");
}

bool Work::isCompleted() {
  in_torchs_terms([&] { check_process(); });
  if (!is_done()) return false;
  std::lock_guard lock(mutex_);
  return exception_ || !call_ || call_->is_finished();
}

bool Work::isSuccess() const {
  if (!is_done()) return false;
  std::lock_guard lock(mutex_);
  return !exception_;
}

void Work::throw_if_failed() {
  std::exception_ptr error;
  {
    std::lock_guard lock(mutex_);
    error = std::exchange(failure_, lasting_failure_);
  }
  if (error) std::rethrow_exception(error);
}

bool Work::wait_done(std::chrono::milliseconds timeout) {
  check_process();
  const Deadline end(std::chrono::duration<double>(timeout).count());
  std::unique_lock lock(mutex_);
  std::optional<BlockedThread> blocked;
  while (!is_over()) {
    if (!blocked) blocked.emplace();
    auto until = Clock::now() + kLongestSleep;
    if (timeout != kNoTimeout) until = std::min(until, end.at());
    cv_.wait_until(lock, until, [&] { return is_over(); });
    if (is_over()) break;
    lock.unlock();
    check_interrupt();
    lock.lock();
    if (timeout != kNoTimeout && end.passed() && !is_over()) return false;
  }
  return true;
}

bool Work::wait(std::chrono::milliseconds timeout) {
  in_torchs_terms([&] {
    prepare_wait(timeout);
    const bool is_over = wait_done(timeout);
    TORCH_CHECK(is_over, "ProcessGroupAccdp: wait Timed out after ", timeout.count(), " ms (timeout) for operation #",
                sequence_);
    throw_if_failed();
  });
  synchronize();
  return true;
}

void Work::synchronize() {
  c10d::Work::synchronize();  // torch may have it on a list
  if (!call_) return;
  in_torchs_terms([&] { wait_done(kNoTimeout); });  // before, there is nothing on the device to wait for
  join();
}

/// torch's own lets the stream go on with the future, which has its value when the operation has been handed over.
void Work::blockCurrentStream() {
  if (call_)
    synchronize();
  else
    c10d::Work::blockCurrentStream();
}

Tensors Work::result() {
  TORCH_CHECK(is_done(), "Work needs to be completed before calling result(). Should call wait() before result().");
  TORCH_CHECK(nested_.empty(), "work result does not support list of lists, use .getFuture() and value()");
  return outputs_;
}

c10::IValue Work::value() const { return nested_.empty() ? c10::IValue(outputs_) : c10::IValue(nested_); }

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  in_torchs_terms([&] { check_process(); });
  const std::optional<c10::Stream> on_device = stream();
  c10::TypePtr type = c10::ListType::create(c10::TensorType::get());
  if (!nested_.empty()) type = c10::ListType::create(type);
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      type, on_device ? std::vector<c10::Device>{on_device->device()} : std::vector<c10::Device>());
  std::unique_lock lock(mutex_);
  if (future_) return future_;
  if (ended_) {  // nobody sees it without its value
    const std::exception_ptr error = exception_;
    lock.unlock();
    settle(*future, error);
    lock.lock();
    if (future_) return future_;  // another thread's
  }
  return future_ = std::move(future);
}

void Work::settle(c10::ivalue::Future& future, const std::exception_ptr& error) {
  if (error) return future.setError(error);
  // A future remembers what the current stream holds when it gets its value, and whoever uses that waits for it.
  c10::OptionalStreamGuard on;
  if (const auto its = stream()) {
    on.reset_stream(*its);
    join();
    c10::Event(its->device_type()).record(*its);  // throws where that of the future would, half way through
  }
  future.markCompleted(value());
}

void Work::complete(std::exception_ptr error) {
  if (end(std::move(error))) settle_future();
}

bool Work::end(std::exception_ptr error) {
  {
    std::lock_guard lock(mutex_);
    if (completing_) return false;
    completing_ = true;
  }
  std::exception_ptr failure, lasting_failure;
  if (error) {
    failure = with_raised(error);
    lasting_failure = lasting(failure);
    error = translated(lasting_failure);
  }
  {
    std::lock_guard lock(mutex_);
    failure_ = failure;
    lasting_failure_ = lasting_failure;
    exception_ = error;
    ended_ = true;
    if (future_) {
      cv_.notify_all();
      return true;
    }
  }
  finish(error);
  return true;
}

void Work::settle_future() {
  std::exception_ptr error;
  {
    std::lock_guard lock(mutex_);
    if (completed_) return;
    error = exception_;
  }
  ++t_callbacks;
  try {
    settle(*future_, error);
  } catch (...) {  // the device has failed since; threads that end works have nobody to tell
    error = std::current_exception();
    {
      std::lock_guard lock(mutex_);
      failure_ = lasting_failure_ = error;
    }
    future_->setErrorIfNeeded(error);
  }
  --t_callbacks;
  finish(error);
}

void Work::abort() {
  TORCH_CHECK(false, "Work.abort: expected abort() of the group; one operation cannot be taken back alone");
}

}  // namespace accdp::torch_backend
