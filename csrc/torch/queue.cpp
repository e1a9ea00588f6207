#include "torch/queue.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

#include "base/error.hpp"

namespace accdp::torch_backend {

Queue::~Queue() { stop(); }

void Queue::execute(const Task& task) {
  std::exception_ptr error;
  try {
    // Copies into the caller's tensors are no part of anybody's graph, and may go into inference tensors.
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    task.run();
  } catch (...) {
    error = std::current_exception();
  }
  task.work->complete(error);
}

void Queue::run_now(const Task& task) {
  {
    std::unique_lock lock(mutex_);
    if (running_ || !tasks_.empty()) {
      lock.unlock();
      run_later(task);
      task.work->wait();
      return;
    }
    running_ = true;
  }
  execute(task);
  {
    std::lock_guard lock(mutex_);
    running_ = false;
    changed_.notify_all();
  }
  task.work->wait();  // throws its error
}

void Queue::run_later(Task task) {
  std::lock_guard lock(mutex_);
  if (stop_) throw UsageError("the process group was shut down: expected no operation after destroy_process_group()");
  tasks_.push_back(std::move(task));
  if (!worker_.joinable()) worker_ = std::thread([this] { loop(); });
  changed_.notify_all();
}

void Queue::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || (!tasks_.empty() && !running_); });
    if (stop_) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    running_ = true;
    lock.unlock();
    execute(task);
    task = {};  // may drop the last reference to tensors; not under the lock
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

bool Queue::drain(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, most, [&] { return tasks_.empty() && !running_; });
}

void Queue::stop() {
  std::deque<Task> left;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    left.swap(tasks_);
    changed_.notify_all();
  }
  if (worker_.joinable()) worker_.join();
  for (Task& task : left)
    task.work->complete(std::make_exception_ptr(Error("the process group was shut down before this operation began")));
}

}  // namespace accdp::torch_backend
