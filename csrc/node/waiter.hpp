#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>

#include "base/deadline.hpp"
#include "node/board.hpp"

namespace accdp {

/// How a rank waits: spin while the answer is a cache line away, yield while its peer may need the
/// core, then sleep. Ranks often outnumber cores; then spinning only keeps the awaited rank away.
struct Patience {
  std::chrono::nanoseconds spin;
  std::chrono::nanoseconds yield;
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
void wait_until(const Board& board, Channel channel, const Patience& patience, Ready&& ready, Watch& watch) {
  if (ready()) return;
  constexpr int kLooksPerClock = 32;
  const auto started = Clock::now();
  const auto spin_end = started + patience.spin;
  const auto yield_end = spin_end + patience.yield;
  auto now = started;
  while (now < spin_end) {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (ready()) return;
      pause();
    }
    now = Clock::now();
  }
  while (now < yield_end) {
    sched_yield();
    if (ready()) return;
    if (board.has_failed()) watch.look_around();
    now = Clock::now();
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
