#pragma once
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/deadline.hpp"
#include "node/board.hpp"

namespace accdp {

/// How long to try one way of waiting before the next: its longest time, or none where it did not help lately.
class Habit {
 public:
  explicit Habit(std::chrono::nanoseconds most) : most_(most) {}

  std::chrono::nanoseconds time() {
    if (confidence_ > 0) return most_;
    return ++refrained_ % kTryAgain == 0 ? most_ : most_.zero();
  }
  void learn(bool answered) {
    confidence_ = answered ? std::min(confidence_ + 1, kMostConfidence) : std::max(confidence_ - 1, 0);
  }

 private:
  static constexpr int kMostConfidence = 4, kTryAgain = 32;
  std::chrono::nanoseconds most_;
  int confidence_ = kMostConfidence;
  unsigned refrained_ = 0;
};

/// A waiting rank spins, then yields its core between looks, then sleeps. Spinning answers soonest where the awaited
/// rank runs on another core; where ranks outnumber the cores it only keeps that rank from running. Yielding lets it
/// run, at a system call per look, and spares both the sleep and being woken. No count of cores tells what goes on
/// beside us, so each wait learns from those before it.
struct Patience {
  Habit spin, yield;
  Habit spin_apart = spin;  ///< where all awaited ranks run on other cores
  bool is_crowded = false;  ///< ranks outnumber cores, so each notes on which one it runs
};

/// Looks now and then, during a long wait, whether there is still something to wait for.
class Watch {
 public:
  /// Whether the group has failed, as far as this rank can know. What another rank did before it failed counts, so
  /// who waits looks once more for what it waits for before it looks around.
  virtual bool has_failed() = 0;
  /// Throws if it `had_failed` before that last look, or on a passed deadline, dead peer or Ctrl-C. A failure since
  /// then is for the next round.
  virtual void look_around(bool had_failed) = 0;

 protected:
  ~Watch() = default;
};

inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline void yield() noexcept { sched_yield(); }

constexpr int kLooksPerClock = 32;

/// Looks, and in between does as little as `rest` does, as long as the habit says; whether `ready()` came true.
template <class Ready>
bool look_until(std::chrono::nanoseconds most, int looks_per_clock, void (*rest)(), Ready&& ready) {
  const auto end = Clock::now() + most;
  do {
    for (int i = 0; i < looks_per_clock; ++i) {
      if (ready()) return true;
      rest();
    }
  } while (Clock::now() < end);
  return false;
}
template <class Ready>
bool try_until(Habit& habit, int looks_per_clock, void (*rest)(), Ready&& ready) {
  const auto most = habit.time();
  if (most.count() == 0) return false;
  const bool answered = look_until(most, looks_per_clock, rest, ready);
  habit.learn(answered);
  return answered;
}

constexpr std::chrono::milliseconds kLongestSleep{50};

/// The last of a wait: sleeps until `ready()`.
template <class Ready>
void sleep_until(const Board& board, Channel channel, Ready&& ready, Watch& watch) {
  Bell& bell = board.mine().bells[channel];
  struct Announced {
    Bell& bell;
    explicit Announced(Bell& b) : bell(b) { bell.sleeping.store(1, std::memory_order_seq_cst); }
    ~Announced() { bell.sleeping.store(0, std::memory_order_relaxed); }
  } announced(bell);
  while (true) {
    const std::uint32_t seen = bell.rung.load(std::memory_order_acquire);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (ready()) return;
    const bool failed = watch.has_failed();
    if (failed && ready()) return;
    watch.look_around(failed);
    timespec most{0, std::chrono::nanoseconds(kLongestSleep).count()};
    syscall(SYS_futex, &bell.rung, FUTEX_WAIT, seen, &most, nullptr, 0);
  }
}

/// Returns once `ready()`.
template <class Ready>
void wait_until(const Board& board, Channel channel, Patience& patience, Ready&& ready, Watch& watch) {
  if (ready()) return;
  if (try_until(patience.spin, kLooksPerClock, pause, ready)) return;
  if (try_until(patience.yield, 1, yield, ready)) return;
  sleep_until(board, channel, ready, watch);
}

/// The same in a collective, where it is known whether this rank keeps one that it waits for from its core:
/// `in_the_way()`. As long as it does it yields, and the first time that it does not it spins.
template <class Ready, class InTheWay>
void wait_beside(const Board& board, Patience& patience, Ready&& ready, InTheWay&& in_the_way, Watch& watch) {
  if (ready()) return;
  bool spun = false;
  auto spin = [&] {
    if (spun || in_the_way()) return false;
    spun = true;
    return try_until(patience.spin_apart, kLooksPerClock, pause, ready);
  };
  if (spin()) return;
  if (try_until(patience.yield, 1, yield, [&] {
        board.note_core();
        return ready() || spin();
      }))
    return;
  sleep_until(board, kCollective, ready, watch);
}

}  // namespace accdp
