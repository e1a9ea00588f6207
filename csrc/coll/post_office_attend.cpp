// The background thread, which moves a group's messages where nobody waits for them.
#include "coll/post_office.hpp"

namespace accdp {
namespace {

// How long an unattended message may lie before the background thread takes over. Long enough that a
// caller who posts and then waits drives it himself, without a hand-over between threads.
constexpr std::chrono::microseconds kGrace{300};
// Of a caller who keeps posting or looking: what he does not move by that must move all the same.
constexpr int kMostGraces = 10;

}  // namespace

void PostOffice::prepare_attendant(std::function<void()> prepare) {
  const std::unique_lock lock = enter();
  prepare_attendant_ = std::move(prepare);
}

void PostOffice::attend() {
  attendant_id_ = std::this_thread::get_id();
  std::unique_lock lock(mutex_);
  int idle_rounds = 0, graces = 0;
  std::shared_ptr<Watcher> watcher;
  while (!stop_) {
    if (open_.empty()) {
      watcher.reset();
      // Rests only after a while without messages: waking it costs every post a system call.
      if (++idle_rounds < 20) {
        attention_.wait_for(lock, std::chrono::milliseconds(1));
        continue;
      }
      resting_ = true;
      attention_.wait(lock, [&] { return stop_ || !open_.empty(); });
      resting_ = false;
      idle_rounds = 0;
      continue;
    }
    idle_rounds = 0;
    if (driving_) {
      attention_.wait_for(lock, std::chrono::milliseconds(5));
      continue;
    }
    const std::uint64_t before = visits_;
    attention_.wait_for(lock, kGrace);
    if (driving_ || stop_ || open_.empty()) continue;
    if (visits_ != before && ++graces < kMostGraces) continue;
    graces = 0;
    attended_ = true;
    drive(lock, watcher, [&, seen = visits_] { return stop_ || open_.empty() || visits_ != seen; });
    attended_ = false;
  }
  if (!driving_ && fabric_.board().has_failed()) end_failed(lock);
  attendant_id_ = std::thread::id();
}

void PostOffice::retire() {
  if (is_attendant() || is_driven_here()) return;  // neither can be waited for here
  const std::lock_guard retiring(retiring_);
  {
    const std::unique_lock lock = enter();
    stop_ = true;
    attention_.notify_all();
    fabric_.board().mine().bells[kPointToPoint].ring();
  }
  if (attendant_.joinable()) attendant_.join();
}

}  // namespace accdp
