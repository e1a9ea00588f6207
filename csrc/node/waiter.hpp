#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/deadline.hpp"
#include "node/board.hpp"

namespace accdp {

/// How long a waiting rank spins before it sleeps. Spinning pays where the awaited rank runs on another
/// core; where ranks (or anybody else's work) outnumber the cores it only keeps that rank from running.
/// No count of cores tells which is the case now, so each wait learns from those before it.
class Patience {
 public:
  explicit Patience(std::chrono::nanoseconds most) : most_(most) {}

  std::chrono::nanoseconds spin() {
    if (confidence_ > 0) return most_;
    return ++refrained_ % kTryAgain == 0 ? most_ : most_.zero();
  }
  void spun(bool answered) {
    confidence_ = answered ? std::min(confidence_ + 1, kMostConfidence) : std::max(confidence_ - 1, 0);
  }

 private:
  static constexpr int kMostConfidence = 4, kTryAgain = 32;
  std::chrono::nanoseconds most_;
  int confidence_ = kMostConfidence;
  unsigned refrained_ = 0;
};

/// Looks now and then, during a long wait, whether there is still something to wait for.
class Watch {
 public:
  /// Throws on failure of the group, passed deadline, dead peer or Ctrl-C.
  virtual void look_around() = 0;

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

constexpr std::chrono::milliseconds kLongestSleep{50};

/// Returns once `ready()`.
template <class Ready>
void wait_until(const Board& board, Channel channel, Patience& patience, Ready&& ready, Watch& watch) {
  if (ready()) return;
  if (const auto spin = patience.spin(); spin.count() > 0) {
    constexpr int kLooksPerClock = 32;
    const auto end = Clock::now() + spin;
    do {
      for (int i = 0; i < kLooksPerClock; ++i) {
        if (ready()) return patience.spun(true);
        pause();
      }
    } while (Clock::now() < end);
    patience.spun(false);
  }
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
    watch.look_around();
    timespec most{0, std::chrono::nanoseconds(kLongestSleep).count()};
    syscall(SYS_futex, &bell.rung, FUTEX_WAIT, seen, &most, nullptr, 0);
  }
}

}  // namespace accdp
