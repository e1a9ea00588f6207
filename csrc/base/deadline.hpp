#pragma once
#include <chrono>

namespace accdp {

using Clock = std::chrono::steady_clock;

/// Seconds for which this thread had a processor.
double processor_seconds() noexcept;

/// A point in time after which a wait gives up, and how long it had been.
class Deadline {
 public:
  explicit Deadline(double seconds, Clock::time_point from = Clock::now())
      : seconds_(seconds),
        at_(seconds > 1e9
                ? Clock::time_point::max()
                : from + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  bool passed() const { return Clock::now() >= at_; }
  double seconds() const { return seconds_; }
  Clock::time_point at() const { return at_; }

 private:
  double seconds_;
  Clock::time_point at_;
};

/// The host language's way to break a long wait (Ctrl-C): called now and then by every waiting
/// thread, throws if the wait has to end. Set once, before any wait.
void set_interrupt_check(void (*check)());
void check_interrupt();

}  // namespace accdp
