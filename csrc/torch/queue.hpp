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
  std::function<void()> run;
};

/// Runs a group's collectives one at a time, in the order in which they were called: inline on the
/// caller's thread when it waits anyway and nothing is ahead, else on worker threads, the first of which
/// starts with the first task that needs it. A future's callback may wait for later operations: it runs
/// on the worker that finished its own, after another worker is ready to take those.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  /// Runs it on this thread and throws its error, as callers of a process group know it; false, and nothing has
  /// happened, where something is ahead of it.
  bool try_now(c10::function_ref<void()> run);
  void run_now(const Task& task);  ///< returns when it is done; what it failed with is in its work
  void run_later(Task task);
  /// Whether this thread is in the middle of one, which a signal handler may have interrupted.
  bool runs_here() const { return runner_.is_this_thread(); }
  bool drain(std::chrono::milliseconds most);  ///< true once nothing is queued or running
  void stop();                                 ///< joins the workers; queued tasks fail; on any thread, several at once

 private:
  bool enter();  ///< true if nothing was ahead; then leave() must follow
  void leave();
  std::exception_ptr execute(c10::function_ref<void()> run);
  void hire();  ///< one more worker; it keeps the queue alive
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool running_ = false;
  ThreadMark runner_;
  bool stop_ = false;
  int idle_ = 0;
  std::vector<std::thread> workers_;
  std::mutex joining_;  // of workers, by whoever stops first
};

}  // namespace accdp::torch_backend
