#pragma once
#include <chrono>
#include <functional>
#include <optional>

#include "base/deadline.hpp"
#include "device/cuda.hpp"

namespace accdp {

/// What a device waits for may be the work of a rank that has died, or given up: whether that has no end any more.
class EndlessWait {
 public:
  /// is_lost: whether there is such a rank. Asked from time to time.
  explicit EndlessWait(std::function<bool()> is_lost) : is_lost_(std::move(is_lost)) {}
  /// For who looks again and again. True from some time after: what that rank had handed over may come to its end.
  bool is_endless();

 private:
  std::function<bool()> is_lost_;
  Clock::time_point next_census_{};
  std::optional<Clock::time_point> given_up_;
};

/// Waits until is_done() says so. False where that has no end.
bool outlast(EndlessWait wait, const std::function<bool()>& is_done);
/// The same for work of a stream; where that has no end, keep_all_memory().
bool outlast_work(cudaStream_t stream, EndlessWait wait, const std::function<bool()>& is_done);

}  // namespace accdp
