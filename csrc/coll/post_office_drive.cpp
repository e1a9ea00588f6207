// Who moves a group's messages, and when: the thread that waits, else the background thread (post_office_attend.cpp).
#include <time.h>

#include <set>

#include "base/error.hpp"
#include "base/keep.hpp"
#include "coll/post_office.hpp"

namespace accdp {
namespace {

// A caller who only ever looks has to find out, too, that a rank is gone.
constexpr std::chrono::milliseconds kBetweenLooks{1};
// At the end: messages that have come, but that nobody has looked at yet, find their receives.
constexpr std::chrono::milliseconds kToLookThrough{10};
constexpr int kLooksPerClockAtWire = 4;  // a look lets MPI work, which takes about a microsecond

}  // namespace

std::string PostOffice::describe(const Message& m) {
  std::string text = std::string(m.is_send ? "send" : "recv") + " of " + std::to_string(m.bytes) + " bytes";
  if (m.tag >= 0) text += ", tag " + std::to_string(m.tag);
  return text;
}

/// Watches on behalf of all open messages. One for each wait, however often callbacks interrupt that: a new one knows
/// nothing of how long it has been waited.
class PostOffice::Watcher final : public Lookout {
 public:
  explicit Watcher(PostOffice& office) : Lookout(office.fabric_, Deadline(1e12)), office_(office) {}

  void look_around(bool had_failed) override {
    {
      std::unique_lock lock(office_.mutex_);
      office_.expire();
    }
    Lookout::look_around(had_failed);
  }
  Clock::time_point next_look = Clock::now() + kLongestSleep;  ///< while messages move

 protected:
  bool waits_for(int rank) const override {
    std::lock_guard lock(office_.mutex_);
    for (const MessageHandle& m : office_.open_)
      if (m->peer == rank || (m->peer < 0 && may_be_missed(rank))) return true;
    return false;
  }
  /// Whether a receive from anybody can end because of `rank`. One that left has sent what it had to, and
  /// others may still send; one that died breaks the group for everything.
  bool may_be_missed(int rank) const {
    const Topology& t = fabric_.topology();
    if (rank == t.rank()) return false;
    bool all_left = true;
    for (int other = 0; other < t.size(); ++other) all_left &= other == t.rank() || fabric_.has_left(other);
    return all_left || !fabric_.has_left(rank);
  }
  std::string what() const override {
    std::lock_guard lock(office_.mutex_);
    return office_.open_.empty() ? "send/recv" : PostOffice::describe(*office_.open_.front());
  }

 private:
  PostOffice& office_;
};

PostOffice::~PostOffice() {
  retire();
  // MPI may still read them: all of a group that has failed, else letters without a message, for which nobody waits.
  if (!parcels_.empty()) keep_for_ever(std::move(parcels_));
}

// ---- giving up ----------------------------------------------------------------------------------

std::string PostOffice::says_late(const Message& m, double seconds) const {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return describe(m) + " Timed out after " + text + " (timeout) waiting for " +
         (m.peer < 0 ? "any rank" : fabric_.describe(m.peer));
}

/// Messages whose deadline has passed. A receive that nobody answered is only given up; else the group fails: a peer
/// counts on the message, or holds the request of a send that a retry would be mistaken for.
void PostOffice::expire() {
  const auto now = Clock::now();
  for (auto next = open_.begin(); next != open_.end();) {  // there may be very many
    const auto here = next++;
    if (now < (*here)->deadline.at()) continue;
    const MessageHandle m = *here;  // which finish() takes out
    const std::string text = says_late(*m, m->deadline.seconds());
    if (m->matched || m->is_send)  // all ranks hear of it, who may be those that are waited for
      return fabric_.fail(FailureKind::kTimeout, fabric_.describe(fabric_.topology().rank()) + ": " + text);
    receives_.remove(m);
    finish(m, std::make_exception_ptr(PeerTimeout("rank " + std::to_string(fabric_.topology().rank()) + " of " +
                                                  std::to_string(fabric_.topology().size()) + ", group " +
                                                  fabric_.name() + ": " + text)));
  }
}

/// An interrupt is for the caller that it came to, on whose thread the host language keeps it, and is returned; the
/// messages hear that the group has failed.
std::exception_ptr PostOffice::give_up(std::exception_ptr error) {
  std::exception_ptr interrupt;
  const std::string what = open_.empty() ? "send/recv" : describe(*open_.front());
  const std::string who = fabric_.describe(fabric_.topology().rank());
  try {
    std::rethrow_exception(error);
  } catch (const Interrupted&) {
    interrupt = error;
    fabric_.fail(FailureKind::kOther, who + " was interrupted during " + what);
    try {
      fabric_.throw_if_failed();
    } catch (const Error&) {
      error = std::current_exception();
    }
  } catch (const std::exception& e) {
    fabric_.fail(kind_of(e), who + " failed in " + what + ": " + e.what());
  }
  std::set<int> receivers;
  for (const Parcel& parcel : parcels_)
    if (parcel.message && parcel.message->is_send) receivers.insert(parcel.message->peer);
  fabric_.withdraw(receivers);
  for (Parcel& parcel : parcels_) fabric_.wire()->abandon(parcel.request);
  for (const MessageHandle& m : std::list<MessageHandle>(open_)) finish(m, error);
  receives_.clear();
  for (Route& route : routes_) route = {};
  keep_for_ever(std::exchange(parcels_, {}));  // MPI may still read the letters among them
  return interrupt;
}

void PostOffice::run_callbacks(std::unique_lock<std::mutex>& lock) {
  if (callbacks_.empty()) return;
  std::vector<std::function<void()>> calls = std::move(callbacks_);
  callbacks_.clear();
  lock.unlock();
  for (auto& call : calls) call();
  calls.clear();  // what they hold may want the host language's lock to go, and who has that may want ours
  lock.lock();
}

// ---- driving ------------------------------------------------------------------------------------

/// The lock, for a caller; who drives steps aside for him.
std::unique_lock<std::mutex> PostOffice::enter() {
  fabric_.check_process();  // first: who holds the lock may not have been forked along
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) return lock;
  ++visitors_;
  lock.lock();
  --visitors_;
  return lock;
}

void PostOffice::step_aside(std::unique_lock<std::mutex>& lock) {
  if (visitors_ == 0) return;
  lock.unlock();
  while (visitors_ > 0) yield();
  lock.lock();
}

/// Tells the node's other ranks whether a caller waits here and moves messages, so that what they want of this rank is
/// soon done. The background thread may be asleep.
void PostOffice::show_driving(bool drives) { fabric_.board().mine().drives.store(drives, std::memory_order_relaxed); }

void PostOffice::look(std::unique_lock<std::mutex>& lock, Watcher& watcher) {
  lock.unlock();
  try {
    if (!watcher.has_failed()) watcher.look_around(false);  // else when all has been taken that came before
  } catch (...) {
    lock.lock();
    throw;
  }
  lock.lock();
}

/// What keeps coming for others, or is sent meanwhile, must not keep a rank from seeing what it waits for in vain.
void PostOffice::look_in_between(std::unique_lock<std::mutex>& lock, Watcher& watcher) {
  if (Clock::now() < watcher.next_look) return;
  look(lock, watcher);
  watcher.next_look = Clock::now() + kLongestSleep;
}

/// Makes the background thread leave the driving to the caller, who knows sooner what he waits for.
void PostOffice::relieve_attendant() {
  ++visits_;
  if (!attended_) return;
  ++changes_;
  fabric_.board().mine().bells[kPointToPoint].ring();
}

/// Looks at the wire for as long as that helped lately, without the lock in between; whether there is something to do.
bool PostOffice::came_over_wire(const std::function<bool()>& enough) {
  const auto came = [&] {
    if (visitors_ > 0) return true;
    const std::lock_guard lock(mutex_);
    return progress() || enough() || !callbacks_.empty() || fabric_.board().has_failed();
  };
  return try_until(wire_patience_.spin, kLooksPerClockAtWire, pause, came) ||
         try_until(wire_patience_.yield, 1, yield, came);
}

void PostOffice::drive(std::unique_lock<std::mutex>& lock, const std::function<bool()>& enough) {
  Watcher watcher(*this);
  drive(lock, watcher, enough);
}

/// Moves messages until `enough()`, or until callbacks were due, or so long. Called with the lock held and driving_
/// false.
void PostOffice::drive(std::unique_lock<std::mutex>& lock, Watcher& watcher, const std::function<bool()>& enough,
                       Clock::time_point until) {
  const bool is_limited = until != Clock::time_point::max();
  std::exception_ptr interrupt;
  const bool attends = is_attendant();
  driving_ = true;
  driver_.set();
  show_driving(!attends);
  Board& board = fabric_.board();
  const Topology& t = fabric_.topology();
  try {
    if (attends && prepare_attendant_) prepare_attendant_();
    std::vector<std::uint64_t> taken(t.local_size());
    bool naps = attends;  // the background thread had better leave the cores to others
    while (!enough() && !(is_limited && Clock::now() >= until)) {
      step_aside(lock);
      const bool failed = board.has_failed();  // before progress(): what others did before they failed counts
      // Read before progress(), so that room made after it looked counts as news.
      for (int local = 0; local < t.local_size(); ++local)
        taken[local] = board.ring_line(t.local_rank(), local).taken.load(std::memory_order_acquire);
      bool moved = progress();
      for (int peer : t.neighbours()) moved |= !failed && take_piece(peer);
      const std::uint64_t changes = changes_;
      look_in_between(lock, watcher);
      if (moved) naps = attends;
      if (!callbacks_.empty()) break;  // one of them may wait for another message, and drive
      if (moved) continue;
      if (enough()) break;
      if (failed) fabric_.throw_if_failed();
      std::vector<int> blocked;
      for (int peer : t.neighbours())
        if (!routes_[peer].outbox.empty() || !routes_[peer].streaming.empty()) blocked.push_back(t.local_of(peer));
      const bool polls = fabric_.wire() != nullptr;
      lock.unlock();
      // What could let us move on: a record for us, room in a ring that we filled, a message posted or given up here.
      auto news = [&] {
        for (int local = 0; local < t.local_size(); ++local) {
          RingLine& in = board.ring_line(local, t.local_rank());
          if (in.written.load(std::memory_order_acquire) != in.taken.load(std::memory_order_relaxed)) return true;
        }
        for (int local : blocked)
          if (board.ring_line(t.local_rank(), local).taken.load(std::memory_order_acquire) != taken[local]) return true;
        return changes_ != changes || stop_ || board.has_failed() || (is_limited && Clock::now() >= until);
      };
      try {
        if (!polls) {
          wait_until(board, kPointToPoint, fabric_.patience(kPointToPoint), news, watcher);
        } else if (!naps && came_over_wire(enough)) {
          // to be seen by the next round
        } else if (!watcher.has_failed()) {  // MPI has nothing to sleep on
          naps = true;
          watcher.look_around(false);
          timespec nap{0, 20'000};
          nanosleep(&nap, nullptr);
        }
      } catch (...) {
        lock.lock();
        throw;
      }
      lock.lock();
    }
  } catch (...) {
    interrupt = give_up(std::current_exception());
  }
  driving_ = false;
  driver_.clear();
  show_driving(false);
  done_.notify_all();
  run_callbacks(lock);
  if (interrupt) std::rethrow_exception(interrupt);
}

void PostOffice::wait(const MessageHandle& m, double timeout_s) {
  std::unique_lock lock = enter();
  if (timeout_s >= 0) m->deadline = Deadline(timeout_s);
  drive_or_wait(lock, [&] { return m->done.load(); });
  if (!driving_) show_driving(false);  // where it was done before
  if (m->error) std::rethrow_exception(m->error);
}

void PostOffice::check_not_driven_here() const {
  if (!is_driven_here()) return;
  throw UsageError("rank " + std::to_string(fabric_.topology().rank()) + " of " +
                   std::to_string(fabric_.topology().size()) + ", group " + fabric_.name() +
                   ": a wait for messages in a signal handler, in the middle of another one");
}

void PostOffice::limit(const MessageHandle& m, double timeout_s) {
  const std::unique_lock lock = enter();
  if (m->deadline.at() == Clock::time_point::max()) m->deadline = Deadline(timeout_s);
}

/// Until `enough()`, whoever drives.
void PostOffice::drive_or_wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& enough,
                               Clock::time_point until) {
  Watcher watcher(*this);
  while (!enough() && (until == Clock::time_point::max() || Clock::now() < until)) {
    if (!driving_) {
      ++visits_;
      drive(lock, watcher, enough, until);
      continue;
    }
    check_not_driven_here();
    relieve_attendant();
    done_.wait_until(lock, std::min(until, Clock::now() + kLongestSleep));
    lock.unlock();
    try {
      check_interrupt();
    } catch (...) {
      lock.lock();
      give_up(std::current_exception());
      run_callbacks(lock);
      throw;
    }
    lock.lock();
  }
}

bool PostOffice::wait_all(std::span<const MessageHandle> messages, double timeout_s, double limit_s) {
  std::unique_lock lock = enter();
  if (limit_s < 0)
    for (const MessageHandle& m : messages)
      if (!m->done) m->deadline = Deadline(timeout_s);
  std::size_t done = 0;  // so many of the first
  const auto all_done = [&] {
    while (done < messages.size() && messages[done]->done) ++done;
    return done == messages.size();
  };
  drive_or_wait(lock, all_done, limit_s < 0 ? Clock::time_point::max() : Deadline(limit_s).at());
  return all_done();
}

bool PostOffice::test(const MessageHandle& m) {
  if (m->done) return true;
  std::unique_lock lock = enter();
  if (driving_) {
    relieve_attendant();
    return m->done;
  }
  ++visits_;
  std::exception_ptr interrupt;
  driving_ = true;
  driver_.set();
  try {
    for (bool looked = false;; looked = true) {
      const bool failed = fabric_.board().has_failed();  // before progress(), as in drive()
      progress();
      if (!failed)
        for (int peer : fabric_.topology().neighbours()) take_piece(peer);
      if (m->done) break;
      if (failed) fabric_.throw_if_failed();
      if (looked || Clock::now() < next_look_) break;
      if (!looker_) looker_ = std::make_shared<Watcher>(*this);
      look(lock, *looker_);
      next_look_ = Clock::now() + kBetweenLooks;
    }
  } catch (...) {
    interrupt = give_up(std::current_exception());
  }
  driving_ = false;
  driver_.clear();
  show_driving(false);
  done_.notify_all();
  run_callbacks(lock);
  if (interrupt) std::rethrow_exception(interrupt);
  return m->done;
}

bool PostOffice::is_done(const MessageHandle& m) { return m->done; }

void PostOffice::on_done(const MessageHandle& m, std::function<void()> call) {
  {
    std::lock_guard lock(mutex_);
    if (!m->done) {
      m->on_done = std::move(call);
      return;
    }
  }
  call();
}

void PostOffice::settle(double timeout_s) {
  std::exception_ptr first;
  if (fabric_.board().has_failed()) return;  // whoever waits for them is told
  {
    std::unique_lock lock = enter();
    drive_or_wait(lock, [&] { return receives_.empty(); }, Clock::now() + kToLookThrough);
  }
  while (true) {
    std::vector<MessageHandle> due;
    {
      const std::unique_lock lock = enter();
      for (const MessageHandle& m : open_)
        if (m->is_send || m->matched) due.push_back(m);
    }
    if (due.empty()) break;
    wait_all(due, timeout_s);
    for (const MessageHandle& m : due)
      if (m->error && !first) first = m->error;
  }
  std::unique_lock lock = enter();
  std::string texts;
  for (const MessageHandle& m : receives_)
    texts +=
        (texts.empty() ? "" : ", ") + describe(*m) + " from " + (m->peer < 0 ? "any rank" : fabric_.describe(m->peer));
  const UsageError error("rank " + std::to_string(fabric_.topology().rank()) + " of " +
                         std::to_string(fabric_.topology().size()) + ", group " + fabric_.name() +
                         ": closed with open receives: expected wait() for each before, got " + texts);
  for (const MessageHandle& m : std::list<MessageHandle>(receives_)) finish(m, std::make_exception_ptr(error));
  receives_.clear();
  run_callbacks(lock);
  if (first) std::rethrow_exception(first);
  if (!texts.empty()) throw error;
}

}  // namespace accdp
