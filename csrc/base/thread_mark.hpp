#pragma once
#include <atomic>
#include <thread>

namespace accdp {

/// Which thread is in the middle of something, for that thread to find out: signal handlers of the host language run on
/// it there. Only what a thread has written itself is ever taken for an answer, so nothing is ordered by it.
class ThreadMark {
 public:
  bool is_this_thread() const noexcept { return whose_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  void set() noexcept { whose_.store(std::this_thread::get_id(), std::memory_order_relaxed); }
  void clear() noexcept { whose_.store(std::thread::id(), std::memory_order_relaxed); }

  class Here {
   public:
    explicit Here(ThreadMark& mark) noexcept : mark_(mark) { mark_.set(); }
    Here(const Here&) = delete;
    ~Here() { mark_.clear(); }

   private:
    ThreadMark& mark_;
  };

 private:
  std::atomic<std::thread::id> whose_{};
};

}  // namespace accdp
