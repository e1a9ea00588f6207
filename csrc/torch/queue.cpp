#include "torch/queue.hpp"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace accdp::torch_backend {

bool Queue::enter() {
  std::lock_guard lock(mutex_);
  if (running_ || !tasks_.empty()) return false;
  running_ = true;
  return true;
}

void Queue::leave() {
  std::lock_guard lock(mutex_);
  running_ = false;
  changed_.notify_all();
}

std::exception_ptr Queue::execute(c10::function_ref<void()> run) {
  const ThreadMark::Here here(runner_);
  try {
    // Copies into the caller's tensors are no part of anybody's graph, and may go into inference tensors.
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    run();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

bool Queue::try_now(c10::function_ref<void()> run) {
  if (!enter()) return false;
  const std::exception_ptr error = execute(run);
  leave();
  if (error) std::rethrow_exception(translated(error));
  return true;
}

void Queue::run_now(const Task& task) {
  if (!enter()) {
    run_later(task);
    task.work->wait_done(kNoTimeout);
    return;
  }
  const bool ends = task.work->end(execute(task.run));  // before the next one does
  leave();
  if (ends) task.work->settle_future();
}

void Queue::run_later(Task task) {
  std::lock_guard lock(mutex_);
  if (stop_) throw UsageError("the process group was shut down: expected no operation after destroy_process_group()");
  tasks_.push_back(std::move(task));
  if (workers_.empty()) hire();
  changed_.notify_all();
}

void Queue::hire() {
  workers_.emplace_back([self = shared_from_this()] { self->loop(); });
}

void Queue::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    changed_.wait(lock, [&] { return stop_ || (!tasks_.empty() && !running_); });
    --idle_;
    if (stop_) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    running_ = true;
    lock.unlock();
    const bool ends = task.work->end(execute(task.run));  // before the next one does
    lock.lock();
    running_ = false;
    if (idle_ == 0 && !stop_) hire();
    changed_.notify_all();
    lock.unlock();
    if (ends) task.work->settle_future();
    task = {};  // may drop the last reference to tensors; not under the lock
    lock.lock();
  }
}

bool Queue::drain(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  const Deadline end(std::chrono::duration<double>(most).count());
  return changed_.wait_until(lock, end.at(), [&] { return tasks_.empty() && !running_; });
}

void Queue::stop() {
  std::deque<Task> left;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    left.swap(tasks_);
    changed_.notify_all();
  }
  // First, because a callback on a worker may be waiting for one of them.
  for (Task& task : left)
    task.work->complete(std::make_exception_ptr(Error("the process group was shut down before this operation began")));
  std::unique_lock joining(joining_, std::defer_lock);
  const auto is_here = [](const std::thread& worker) { return worker.get_id() == std::this_thread::get_id(); };
  const auto here = std::find_if(workers_.begin(), workers_.end(), is_here);
  if (here == workers_.end())
    joining.lock();
  else if (joining.try_lock())
    here->detach();  // a callback dropped the last reference to the group
  else
    return;  // another thread waits for this one
  for (std::thread& worker : workers_)
    if (worker.joinable()) worker.join();
}

}  // namespace accdp::torch_backend
