#include "gpu/endless_wait.hpp"

#include <thread>
#include <utility>

namespace accdp {
namespace {

constexpr std::chrono::milliseconds kBetweenCensuses{20};
constexpr std::chrono::seconds kPatience{2};  // other ranks' devices may be behind when these fail
constexpr std::chrono::microseconds kSpin{200}, kLook{200};

}  // namespace

bool EndlessWait::is_endless() {
  const auto now = Clock::now();
  if (!given_up_ && now >= next_census_) {
    next_census_ = now + kBetweenCensuses;
    if (is_lost_()) given_up_ = now + kPatience;
  }
  return given_up_ && now > *given_up_;
}

bool outlast(EndlessWait wait, const std::function<bool()>& is_done) {
  const auto begun = Clock::now();
  while (!is_done()) {
    if (wait.is_endless()) return false;
    Clock::now() < begun + kSpin ? std::this_thread::yield() : std::this_thread::sleep_for(kLook);
  }
  return true;
}

bool outlast_work(cudaStream_t stream, EndlessWait wait, const std::function<bool()>& is_done) {
  const bool has_end = outlast(std::move(wait), is_done);
  if (!has_end) keep_all_memory(stream);
  return has_end;
}

}  // namespace accdp
