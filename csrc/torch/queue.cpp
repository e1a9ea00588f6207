#include "torch/queue.hpp"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "node/status.hpp"

namespace accdp::torch_backend {
namespace {

// How long a task lies before a worker takes it that nobody wakes: longer than a caller takes from a call to wait().
constexpr std::chrono::microseconds kGrace{100};
constexpr int kMostIdleLooks = 20;
// So many workers stay when there is nothing to do. More were hired while callbacks kept others, for the GIL perhaps.
constexpr int kMostIdle = 4;

bool is_this_thread(const std::thread& worker) { return worker.get_id() == std::this_thread::get_id(); }

}  // namespace

bool Queue::enter() {
  std::lock_guard lock(mutex_);
  if (running_ || !tasks_.empty()) return false;
  running_ = true;
  return true;
}

void Queue::leave() {
  std::lock_guard lock(mutex_);
  running_ = false;
  // A worker that has nothing to do is not woken by every call that runs here.
  if (draining_ > 0 || (!tasks_.empty() && !watched_)) changed_.notify_all();
}

Task Queue::take() {
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  ++taken_;
  running_ = true;
  return task;
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
    hurry();
    task.work->wait_done(kNoTimeout);
    return;
  }
  run_here(task);
}

void Queue::run_here(const Task& task) {
  const bool ends = task.work->end(execute(task.run));  // before the next one does
  leave();
  if (ends) task.work->settle_future();
}

void Queue::run_if_next(const Work& work) {
  Task task;
  {
    std::lock_guard lock(mutex_);
    if (running_ || tasks_.empty() || tasks_.front().work.get() != &work || work.has_future()) return hurry(lock);
    task = take();
    overtaken_ = true;
  }
  run_here(task);
}

void Queue::hurry() { hurry(std::lock_guard(mutex_)); }

void Queue::hurry(const std::lock_guard<std::mutex>&) {
  if (!watched_ || tasks_.empty()) return;
  hurried_ = true;
  changed_.notify_all();
}

void Queue::run_later(Task task) {
  std::lock_guard lock(mutex_);
  if (stop_) throw UsageError("the process group was shut down: expected no operation after destroy_process_group()");
  if (workers_.empty()) hire();
  tasks_.push_back(std::move(task));
  if (!watched_) changed_.notify_all();
}

void Queue::call_back(Work& work) {
  {
    std::lock_guard lock(mutex_);
    if (!stop_ && (!workers_.empty() || hire_if_possible())) {
      tasks_.push_back({c10::intrusive_ptr<Work>::reclaim_copy(&work), {}});
      changed_.notify_all();
      return;
    }
  }
  work.settle_future();
}

void Queue::hire() {
  workers_.emplace_back([self = shared_from_this()] { self->loop(); });
}

bool Queue::hire_if_possible() noexcept {
  try {
    hire();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// Waking a worker costs the caller a system call, and where ranks fill the cores a turn of its own; in vain, if he
/// then waits and runs the task himself. After that one worker looks by itself, and takes what has lain there from one
/// look to the next, until it found such a task, or nothing for a while.
void Queue::await_task(std::unique_lock<std::mutex>& lock) {
  constexpr std::uint64_t kNothing = ~std::uint64_t{0};
  std::uint64_t lay = kNothing, before = taken_;
  bool looks = false;
  for (int idle_looks = 0; !stop_;) {
    const bool is_due = !tasks_.empty() && !running_;
    if (is_due && (looks ? hurried_ || lay == taken_ : !watched_)) break;
    if (!looks && overtaken_ && !watched_) {
      overtaken_ = false;
      looks = watched_ = true;
      idle_looks = 0;
    }
    if (!looks) {
      changed_.wait(lock);
      continue;
    }
    idle_looks = tasks_.empty() && taken_ == std::exchange(before, taken_) ? idle_looks + 1 : 0;
    if (idle_looks >= kMostIdleLooks) {
      looks = watched_ = overtaken_ = false;
      continue;
    }
    lay = tasks_.empty() ? kNothing : taken_;
    changed_.wait_for(lock, kGrace);
  }
  if (looks) watched_ = overtaken_ = hurried_ = false;
}

/// A worker that ends by itself: nobody joins it, and all that it does thereafter is return.
void Queue::dismiss_this_thread() {
  const auto here = std::find_if(workers_.begin(), workers_.end(), is_this_thread);
  here->detach();
  workers_.erase(here);
}

void Queue::loop() {
  const BackgroundThread in_background;
  std::unique_lock lock(mutex_);
  while (true) {
    if (idle_ >= kMostIdle && !stop_) return dismiss_this_thread();
    ++idle_;
    await_task(lock);
    --idle_;
    if (stop_) return;
    Task task = take();
    lock.unlock();
    const bool ends = !task.run || task.work->end(execute(task.run));  // before the next one does
    lock.lock();
    running_ = false;
    if (idle_ == 0 && !stop_) hire_if_possible();  // without, this one goes on when it has called back
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
  ++draining_;
  const bool is_empty = changed_.wait_until(lock, end.at(), [&] { return tasks_.empty() && !running_; });
  --draining_;
  return is_empty;
}

void Queue::stop(std::exception_ptr error) {
  std::deque<Task> left;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    left.swap(tasks_);
    changed_.notify_all();
  }
  // First, because a callback on a worker may be waiting for one of them.
  if (!error) error = std::make_exception_ptr(Error("the process group was shut down before this operation began"));
  for (Task& task : left) task.run ? task.work->complete(error) : task.work->settle_future();
  if (!runs_here()) {  // else a signal handler came into the middle of it
    std::unique_lock lock(mutex_);
    ++draining_;
    changed_.wait(lock, [&] { return !running_; });
    --draining_;
  }
  std::unique_lock joining(joining_, std::defer_lock);
  const auto here = std::find_if(workers_.begin(), workers_.end(), is_this_thread);
  if (here == workers_.end())
    joining.lock();
  else if (joining.try_lock())
    here->detach();  // a callback dropped the last reference to the group
  else
    return;  // another thread waits for this one
  for (std::thread& worker : workers_)
    if (worker.joinable()) worker.join();
}

/// A time-out that is given ends the wait alone, so the operation cannot be this thread's.
void QueuedWork::prepare_wait(std::chrono::milliseconds timeout) {
  check_process();
  const std::shared_ptr<Queue> queue = wait_returns() ? nullptr : queue_.lock();
  if (!queue) return;
  if (queue->runs_here())
    throw UsageError("a work of " + c10d::opTypeToString(opType_) +
                     ": wait() in a signal handler, in the middle of another operation of its group");
  timeout == kNoTimeout ? queue->run_if_next(*this) : queue->hurry();
}

c10::intrusive_ptr<c10::ivalue::Future> QueuedWork::getFuture() {
  auto future = Work::getFuture();
  if (const std::shared_ptr<Queue> queue = is_done() ? nullptr : queue_.lock()) queue->hurry();
  return future;
}

}  // namespace accdp::torch_backend
