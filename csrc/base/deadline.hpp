#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

namespace accdp {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

inline std::int64_t nanoseconds(Clock::time_point time) noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// Seconds for which this thread had a processor.
double processor_seconds() noexcept;

/// Of calls of the same, the shortest, for those whose first ones warm something up; never 0.
template <class Call>
double least_processor_seconds(int calls, Call call) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < calls; ++i) {
    const double began = processor_seconds();
    call();
    least = std::min(least, processor_seconds() - began);
  }
  return std::max(least, 1e-9);
}

/// Thirty years: who waits longer waits without end. Some more, and clocks overflow.
constexpr double kEndlessS = 1e9;

/// A point in time after which a wait gives up, and how long it had been.
class Deadline {
 public:
  explicit Deadline(double seconds, Clock::time_point from = Clock::now())
      : seconds_(seconds),
        at_(seconds > kEndlessS
                ? Clock::time_point::max()
                : from + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  bool passed() const { return Clock::now() >= at_; }
  double seconds() const { return seconds_; }
  Clock::time_point at() const { return at_; }

 private:
  double seconds_;
  Clock::time_point at_;
};

/// Counts looks for what comes soon, if at all: so long, but so often where others keep this thread from its core.
class Looks {
 public:
  explicit Looks(Clock::duration most) : until_(Clock::now() + most) {}
  bool go_on() { return least_-- > 0 || Clock::now() < until_; }

 private:
  Clock::time_point until_;
  int least_ = 20;  // in which MPI moves what is short
};

/// The host language's way to break a long wait (Ctrl-C): called now and then by every waiting
/// thread, throws if the wait has to end. Set once, before any wait.
void set_interrupt_check(void (*check)());
void check_interrupt();
/// Whether this thread is in it: in a signal handler of the host language, in the middle of a wait.
bool is_in_interrupt_check() noexcept;

}  // namespace accdp
