#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <c10/util/FunctionRef.h>
#include <c10/util/intrusive_ptr.h>

#include "base/thread_mark.hpp"
#include "torch/work.hpp"

namespace accdp::torch_backend {

struct Task {
  c10::intrusive_ptr<Work> work;
  std::function<void()> run;  ///< none where it has ended, and its future's callbacks are what is left
};

/// Runs a group's collectives one at a time, in the order in which they were called: inline on the
/// caller's thread when it waits, at once or soon, and nothing is ahead, else on worker threads, the first of which
/// starts with the first task that needs it. A future's callback may wait for later operations: it runs
/// on the worker that finished its own, after another worker is ready to take those.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  /// Runs it on this thread and throws its error, as callers of a process group know it; false, and nothing has
  /// happened, where something is ahead of it.
  bool try_now(c10::function_ref<void()> run);
  /// Returns when it is done; what it failed with is in its work. Interrupted where it has to wait for its turn, which
  /// then comes all the same.
  void run_now(const Task& task);
  void run_later(Task task);  ///< throws std::system_error where no thread can be had; then nothing has happened
  /// Has a work that has ended call its future's callbacks, on a worker.
  void call_back(Work& work);
  /// Runs it here, if it is the next one and no worker has begun it: a thread that is woken takes ten times as long as
  /// a short operation. Not one with a future, whose callbacks may take long.
  void run_if_next(const Work& work);
  void hurry();  ///< somebody waits for tasks that are not his to run
  /// Whether this thread is in the middle of one, which a signal handler may have interrupted.
  bool runs_here() const { return runner_.is_this_thread(); }
  bool drain(std::chrono::milliseconds most);  ///< true once nothing is queued or running
  /// Joins the workers; queued tasks fail, with `error` if there is one; on any thread, several at once.
  void stop(std::exception_ptr error = nullptr);

 private:
  bool enter();  ///< true if nothing was ahead; then leave() must follow
  void leave();
  Task take();  ///< the next one, which runs from now on
  std::exception_ptr execute(c10::function_ref<void()> run);
  void hurry(const std::lock_guard<std::mutex>& locked);
  void run_here(const Task& task);  ///< after enter(), or the like
  void hire();                      ///< one more worker; it keeps the queue alive; throws where there can be none
  bool hire_if_possible() noexcept;
  void loop();
  void dismiss_this_thread();
  void await_task(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::uint64_t taken_ = 0;  // tasks that were in there
  bool running_ = false;
  bool overtaken_ = false;  // a caller came for a task sooner than the worker that it woke
  bool watched_ = false;    // a worker looks for tasks by itself
  bool hurried_ = false;    // and had better take them at once
  int draining_ = 0;
  ThreadMark runner_;
  bool stop_ = false;
  int idle_ = 0;
  std::vector<std::thread> workers_;  // which changes no more once it stops
  std::mutex joining_;                // of workers, by whoever stops first
};

/// An operation that a queue runs, or ran.
class QueuedWork final : public Work {
 public:
  template <class... Args>
  explicit QueuedWork(const std::shared_ptr<Queue>& queue, Args&&... args)
      : Work(std::forward<Args>(args)...), queue_(queue) {}
  void prepare_wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::weak_ptr<Queue> queue_;
};

}  // namespace accdp::torch_backend
