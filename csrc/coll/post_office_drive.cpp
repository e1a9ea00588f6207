// Who moves a group's messages, and when: the thread that waits, else the background thread (post_office_attend.cpp).
#include <time.h>

#include <algorithm>

#include "base/error.hpp"
#include "coll/post_office.hpp"

namespace accdp {
namespace {

// A caller who only ever looks has to find out, too, that a rank is gone.
constexpr std::chrono::milliseconds kBetweenLooks{1};
constexpr int kLooksPerClockAtWire = 4;  // a look lets MPI work, which takes about a microsecond

/// Without the lock for as long as this lives.
class Unlocked {
 public:
  explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  Unlocked(const Unlocked&) = delete;
  ~Unlocked() { lock_.lock(); }

 private:
  std::unique_lock<std::mutex>& lock_;
};

}  // namespace

/// Watches on behalf of all open messages. One for each wait, however often callbacks interrupt that, and one of the
/// background thread for as long as there are any, however often callers look: a new one knows nothing of how long it
/// has been waited.
class PostOffice::Watcher final : public Lookout {
 public:
  /// Of one that waits for these; for all that are open where there are none.
  Watcher(PostOffice& office, std::span<const MessageHandle> awaited) : Watcher(office, awaited, kForMessages) {}
  /// Of one that does something else meanwhile.
  explicit Watcher(PostOffice& office) : Watcher(office, {}, kForAttended) {}

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
    return rank != t.rank() && (!fabric_.has_left(rank) || all_left());
  }
  bool all_left() const {
    const Topology& t = fabric_.topology();
    for (int other = 0; other < t.size(); ++other)
      if (other != t.rank() && !fabric_.has_left(other)) return false;
    return true;
  }
  std::vector<int> missed_by_any() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < fabric_.topology().size(); ++rank)
      if (may_be_missed(rank)) ranks.push_back(rank);
    return ranks;
  }
  std::string what() const override {
    std::lock_guard lock(office_.mutex_);
    return office_.open_.empty() ? "send/recv" : PostOffice::describe(*office_.open_.front());
  }
  /// First whom it waits for, then with whom other messages are open: what comes from there may be on its way.
  void describe_to(GroupStatus::Wait& wait) const override {
    std::lock_guard lock(office_.mutex_);
    std::map<int, std::uint32_t> parts;
    const Message* first = nullptr;
    const auto is_awaited = [&](const Message& m) {
      if (!first || m.started < first->started) first = &m;
      wait.is_for_any |= m.peer < 0;
      if (m.peer >= 0) parts[m.peer] |= m.is_send ? kAwaitsSend : kAwaitsReceive;
    };
    auto is_enough = [&, looked_at = 0]() mutable {
      wait.is_partial |= ++looked_at > kMostLookedAt;
      return wait.is_partial;
    };
    for (const MessageHandle& m : awaited_) {
      if (!m || m->done) continue;
      if (is_enough()) break;
      is_awaited(*m);
    }
    for (const MessageHandle& m : office_.open_) {
      if (is_enough()) break;
      if (m->peer >= 0) parts[m->peer] |= m->is_send ? kSends : kReceives;
      if (awaited_.empty()) is_awaited(*m);
    }
    if (!first) return;
    wait.what = PostOffice::describe(*first);
    wait.since_ns = nanoseconds(first->started);
    if (wait.is_for_any)
      for (const int rank : missed_by_any()) parts[rank] |= kAwaitsAny;
    for (const bool awaited : {true, false})
      for (const auto& [rank, bits] : parts) {
        if (((bits & (kAwaitsSend | kAwaitsReceive | kAwaitsAny)) != 0) != awaited) continue;
        wait.count += awaited;
        if (wait.ranks.size() <= std::size_t(StatusLine::kMostShown))
          wait.ranks.push_back({rank, fabric_.peer(rank).pid, fabric_.peer(rank).host, bits});
      }
  }

 private:
  static constexpr int kMostLookedAt = 10'000;  // of open messages, while others want the lock

  Watcher(PostOffice& office, std::span<const MessageHandle> awaited, WaitKind kind)
      : Lookout(office.fabric_, Deadline(1e12), kind), office_(office), awaited_(awaited) {}

  PostOffice& office_;
  std::span<const MessageHandle> awaited_;
};

/// The rings as they were before they were looked at: what comes, or is taken, after that is news.
class PostOffice::Rings {
 public:
  explicit Rings(const PostOffice& office)
      : office_(office),
        board_(office.fabric_.board()),
        me_(office.fabric_.topology().local_rank()),
        taken_(office.fabric_.topology().local_size()) {}

  void see() {
    for (int local = 0; local < static_cast<int>(taken_.size()); ++local) taken_[local] = taken_now(local);
  }
  /// With the lock: rings without room for what is to go.
  void find_full() {
    const Topology& t = office_.fabric_.topology();
    full_.clear();
    for (int peer : t.neighbours())
      if (!office_.routes_[peer].outbox.empty() || !office_.routes_[peer].streaming.empty())
        full_.push_back(t.local_of(peer));
  }
  bool have_news() const {
    for (int local = 0; local < static_cast<int>(taken_.size()); ++local) {
      const RingLine& in = board_.ring_line(local, me_);
      if (in.written.load(std::memory_order_acquire) != in.taken.load(std::memory_order_relaxed)) return true;
    }
    return std::any_of(full_.begin(), full_.end(), [&](int local) { return taken_now(local) != taken_[local]; });
  }

 private:
  std::uint64_t taken_now(int local) const {
    return board_.ring_line(me_, local).taken.load(std::memory_order_acquire);
  }

  const PostOffice& office_;
  Board& board_;
  int me_;
  std::vector<std::uint64_t> taken_;
  std::vector<int> full_;
};

void PostOffice::run_callbacks(std::unique_lock<std::mutex>& lock) {
  if (callbacks_.empty()) return;
  std::vector<std::function<void()>> due;
  due.swap(callbacks_);
  const Unlocked unlocked(lock);
  // Gone before we have the lock again: what they hold may want the host language's to go, and who has that ours.
  const auto calls = std::move(due);
  for (const auto& call : calls) call();
}

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
  const Unlocked unlocked(lock);
  while (visitors_ > 0) yield();
}

/// Tells the node's other ranks whether a caller waits here and moves messages, so that what they want of this rank is
/// soon done. The background thread may be asleep.
void PostOffice::show_driving(bool drives) { fabric_.board().mine().drives.store(drives, std::memory_order_relaxed); }

void PostOffice::look(std::unique_lock<std::mutex>& lock, Watcher& watcher) {
  const Unlocked unlocked(lock);
  if (!watcher.has_failed()) watcher.look_around(false);  // else when all has been taken that came before
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

void PostOffice::drive(std::unique_lock<std::mutex>& lock, std::shared_ptr<Watcher>& watcher,
                       const std::function<bool()>& enough) {
  if (!watcher) watcher = std::make_shared<Watcher>(*this);
  drive(lock, *watcher, enough);
}

/// Does `move` as the one who drives. Called with the lock held and driving_ false. What goes wrong in it the messages
/// hear of.
template <class Move>
void PostOffice::as_driver(std::unique_lock<std::mutex>& lock, Move move) {
  std::exception_ptr interrupt;
  driving_ = true;
  driver_.set();
  try {
    const Fabric::ForMessages their_error;
    move();
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

/// What can be moved at once; whether anything was.
bool PostOffice::move_all(bool has_failed) {
  bool moved = progress();
  for (int peer : fabric_.topology().neighbours()) moved |= !has_failed && take_piece(peer);
  return moved;
}

/// Moves messages until `enough()`, or until callbacks were due, or so long.
void PostOffice::drive(std::unique_lock<std::mutex>& lock, Watcher& watcher, const std::function<bool()>& enough,
                       Clock::time_point until) {
  const bool attends = is_attendant();
  const auto is_over = [&] { return until != Clock::time_point::max() && Clock::now() >= until; };
  as_driver(lock, [&] {
    show_driving(!attends);
    if (attends && prepare_attendant_) prepare_attendant_();
    Rings rings(*this);
    bool naps = attends;  // the background thread had better leave the cores to others
    while (!enough() && !is_over()) {
      step_aside(lock);
      // Both before anything moves: what others did before they failed counts, and room made since then is news.
      const bool failed = fabric_.board().has_failed();
      rings.see();
      const bool moved = move_all(failed);
      const std::uint64_t changes = changes_;
      look_in_between(lock, watcher);
      if (!callbacks_.empty()) return;  // one of them may wait for another message, and drive
      if (moved) {
        naps = attends;
        continue;
      }
      if (enough()) return;
      if (failed) fabric_.throw_if_failed();
      rings.find_full();
      const Unlocked unlocked(lock);
      if (fabric_.wire()) {
        naps = naps || !came_over_wire(enough);
        if (naps) nap(watcher);
        continue;
      }
      // What could let us move on: a record for us, room in a ring that we filled, a message posted or given up here.
      const auto has_news = [&] {
        return rings.have_news() || changes_ != changes || stop_ || fabric_.board().has_failed() || is_over();
      };
      wait_until(fabric_.board(), kPointToPoint, fabric_.patience(kPointToPoint), has_news, watcher);
    }
  });
}

/// MPI has nothing to sleep on.
void PostOffice::nap(Watcher& watcher) {
  if (watcher.has_failed()) return;
  watcher.look_around(false);
  const timespec time{0, 20'000};
  nanosleep(&time, nullptr);
}

void PostOffice::wait(const MessageHandle& m, double timeout_s) {
  std::unique_lock lock = enter();
  if (timeout_s >= 0) m->deadline = Deadline(timeout_s);
  drive_or_wait(lock, {&m, 1}, [&] { return m->done.load(); });
  if (!driving_) show_driving(false);  // where it was done before
  if (!m->error) return;
  hear(*m);
  std::rethrow_exception(m->error);
}

void PostOffice::check_not_driven_here() const {
  if (!is_driven_here()) return;
  throw UsageError(fabric_.here() + ": a wait for messages in a signal handler, in the middle of another one");
}

void PostOffice::limit(const MessageHandle& m, double timeout_s) {
  const std::unique_lock lock = enter();
  if (m->deadline.at() == Clock::time_point::max()) m->deadline = Deadline(timeout_s);
}

/// Until `enough()`, whoever drives.
void PostOffice::drive_or_wait(std::unique_lock<std::mutex>& lock, std::span<const MessageHandle> awaited,
                               const std::function<bool()>& enough, Clock::time_point until) {
  Watcher watcher(*this, awaited);
  while (!enough() && (until == Clock::time_point::max() || Clock::now() < until)) {
    if (!driving_) {
      ++visits_;
      drive(lock, watcher, enough, until);
      continue;
    }
    check_not_driven_here();
    relieve_attendant();
    done_.wait_until(lock, std::min(until, Clock::now() + kLongestSleep));
    try {
      const Unlocked unlocked(lock);
      check_interrupt();
    } catch (...) {
      give_up(std::current_exception());
      run_callbacks(lock);
      throw;
    }
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
  drive_or_wait(lock, messages, all_done, limit_s < 0 ? Clock::time_point::max() : Deadline(limit_s).at());
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
  as_driver(lock, [&] {
    for (bool looked = false;; looked = true) {
      const bool failed = fabric_.board().has_failed();  // before anything moves, as in drive()
      move_all(failed);
      if (open_.empty()) looker_.reset();  // what it has shown is over
      if (m->done) return;
      if (failed) fabric_.throw_if_failed();
      if (looked || Clock::now() < next_look_) return;
      if (!looker_) looker_ = std::make_shared<Watcher>(*this);
      look(lock, *looker_);
      next_look_ = Clock::now() + kBetweenLooks;
    }
  });
  return m->done;
}

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

}  // namespace accdp
