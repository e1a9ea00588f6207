#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include <c10/util/intrusive_ptr.h>

#include "torch/work.hpp"

namespace accdp::torch_backend {

struct Task {
  c10::intrusive_ptr<Work> work;
  std::function<void()> run;
};

/// Runs a group's collectives one at a time, in the order in which they were called: inline on the
/// caller's thread when it waits anyway and nothing is ahead, else on a worker thread, which starts
/// with the first task that needs it.
class Queue {
 public:
  ~Queue();
  void run_now(const Task& task);  ///< returns when it is done; throws its error
  void run_later(Task task);
  bool drain(std::chrono::milliseconds most);  ///< true once nothing is queued or running
  void stop();                                 ///< joins the worker; queued tasks fail

 private:
  static void execute(const Task& task);
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool running_ = false;
  bool stop_ = false;
  std::thread worker_;
};

}  // namespace accdp::torch_backend
