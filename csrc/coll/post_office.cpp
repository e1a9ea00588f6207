#include "coll/post_office.hpp"

#include <time.h>

#include <cstring>

#include "base/error.hpp"

namespace accdp {
namespace {

constexpr std::size_t kWirePieceBytes = 64 << 20;
// How long an unattended message may lie before the background thread takes over. Long enough that a
// caller who posts and then waits drives it himself, without a hand-over between threads.
constexpr std::chrono::microseconds kGrace{300};

std::string signature_text(const Message& m) {
  std::string text = std::string(m.is_send ? "send" : "recv") + " of " + std::to_string(m.bytes) + " bytes";
  if (m.tag >= 0) text += ", tag " + std::to_string(m.tag);
  return text;
}

}  // namespace

/// Watches on behalf of all open messages.
class PostOffice::Watcher : public Lookout {
 public:
  explicit Watcher(PostOffice& office) : Lookout(office.fabric_, Deadline(1e12)), office_(office) {}

  void look_around() override {
    {
      std::unique_lock lock(office_.mutex_);
      office_.expire();
    }
    Lookout::look_around();
  }

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
    return office_.open_.empty() ? "send/recv" : signature_text(*office_.open_.front());
  }

 private:
  PostOffice& office_;
};

PostOffice::PostOffice(Fabric& fabric) : fabric_(fabric), routes_(fabric.topology().size()) {}

PostOffice::~PostOffice() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    attention_.notify_all();
    fabric_.board().mine().bells[kPointToPoint].ring();
  }
  if (attendant_.joinable()) attendant_.join();
}

MessageHandle PostOffice::send(ConstBytes data, int to, std::int64_t tag, double timeout_s) {
  auto message = std::make_shared<Message>(true, to, tag, const_cast<std::byte*>(data.data()), data.size(), timeout_s);
  post(message);
  return message;
}

MessageHandle PostOffice::receive(Bytes data, int from, std::int64_t tag, double timeout_s) {
  auto message = std::make_shared<Message>(false, from, tag, data.data(), data.size(), timeout_s);
  post(message);
  return message;
}

void PostOffice::post(const MessageHandle& m) {
  fabric_.throw_if_failed();
  std::unique_lock lock(mutex_);
  open_.push_back(m);
  ++changes_;
  if (!m->is_send) {
    auto fits = [&](const Unexpected& u) { return u.head.tag == m->tag && (m->peer < 0 || m->peer == u.from); };
    auto found = std::find_if(unexpected_.begin(), unexpected_.end(), fits);
    if (found == unexpected_.end()) {
      receives_.push_back(m);
    } else {
      Unexpected u = std::move(*found);
      unexpected_.erase(found);
      accept(m, u.from, u.head);
      if (u.head.kind == MessageHead::kEager && !m->done) {
        if (!u.payload.empty()) std::memcpy(m->data, u.payload.data(), u.payload.size());
        finish(m);
      }
    }
  } else if (m->peer == fabric_.topology().rank()) {
    // To oneself: as if it had come in whole, so that send never waits for the receive.
    MessageHead head{MessageHead::kEager, static_cast<std::uint32_t>(m->bytes), m->tag, 0, m->bytes};
    arrived(m->peer, head, [&](std::byte* place) {
      if (m->bytes) std::memcpy(place, m->data, m->bytes);
    });
    finish(m);
  } else if (m->bytes <= fabric_.eager_bytes) {
    m->matched = true;
    routes_[m->peer].outbox.push_back(
        {{MessageHead::kEager, static_cast<std::uint32_t>(m->bytes), m->tag, 0, m->bytes}, m});
  } else {
    m->id = next_id_++;
    routes_[m->peer].asked[m->id] = m;
    routes_[m->peer].outbox.push_back({{MessageHead::kAsk, 0, m->tag, m->id, m->bytes}, nullptr});
  }
  try {
    progress();
  } catch (...) {
    give_up(std::current_exception());
  }
  if (!open_.empty()) {
    if (!attendant_.joinable()) attendant_ = std::thread([this] { attend(); });
    if (resting_) attention_.notify_one();
    // The thread that drives may sleep with what it knew before this message came.
    if (driving_) {
      Bell& bell = fabric_.board().mine().bells[kPointToPoint];
      bell.ring();
    }
  }
  run_callbacks(lock);
}

// ---- matching -----------------------------------------------------------------------------------

void PostOffice::check_size(const Message& m, int from, const MessageHead& head) {
  if (m.bytes == head.bytes) return;
  fabric_.fail(FailureKind::kMismatch, fabric_.describe(from) + " sends " + std::to_string(head.bytes) +
                                           " bytes, tag " + std::to_string(head.tag) + ", to " +
                                           fabric_.describe(fabric_.topology().rank()) + ", which receives " +
                                           std::to_string(m.bytes));
  fabric_.throw_if_failed();
}

/// A receive has found its message. Eager payload is copied by the caller.
void PostOffice::accept(const MessageHandle& m, int from, const MessageHead& head) {
  m->peer = from;
  m->matched = true;
  try {
    check_size(*m, from, head);
  } catch (...) {
    finish(m, std::current_exception());
    return;
  }
  if (head.kind == MessageHead::kAsk) grant(m, from, head);
}

void PostOffice::grant(const MessageHandle& m, int from, const MessageHead& head) {
  m->id = head.id;
  if (is_near(from)) {
    routes_[from].arriving[head.id] = m;
  } else {
    for (std::size_t at = 0; at < m->bytes; at += kWirePieceBytes) {
      const std::size_t n = std::min(kWirePieceBytes, m->bytes - at);
      parcels_.push_back(
          {fabric_.wire()->irecv({m->data + at, n}, from, Wire::data_tag(m->id)), {}, m, at + n == m->bytes});
    }
  }
  routes_[from].outbox.push_back({{MessageHead::kGrant, 0, head.tag, head.id, head.bytes}, nullptr});
}

/// A head has come in; `take` removes it from where it came, copying its payload.
void PostOffice::arrived(int from, const MessageHead& head, const std::function<void(std::byte*)>& take) {
  Route& route = routes_[from];
  if (head.kind == MessageHead::kGrant) {
    take(nullptr);
    auto it = route.asked.find(head.id);
    if (it == route.asked.end()) return;  // the send timed out meanwhile
    it->second->matched = true;
    route.streaming.push_back(it->second);
    route.asked.erase(it);
    return;
  }
  if (head.kind == MessageHead::kData) {
    auto it = route.arriving.find(head.id);
    MessageHandle m = it->second;
    take(m->data + m->moved);
    m->moved += head.piece;
    if (m->moved < m->bytes) return;
    route.arriving.erase(it);
    finish(m);
    return;
  }
  auto fits = [&](const MessageHandle& m) { return m->tag == head.tag && (m->peer < 0 || m->peer == from); };
  auto found = std::find_if(receives_.begin(), receives_.end(), fits);
  if (found == receives_.end()) {
    Unexpected u{from, head, std::vector<std::byte>(head.piece)};
    take(u.payload.data());
    unexpected_.push_back(std::move(u));
    return;
  }
  MessageHandle m = *found;
  receives_.erase(found);
  accept(m, from, head);
  if (m->done) {  // refused
    std::vector<std::byte> dropped(head.piece);
    take(dropped.data());
    return;
  }
  take(m->data);
  if (head.kind == MessageHead::kEager) finish(m);
}

// ---- moving -------------------------------------------------------------------------------------

bool PostOffice::progress() {
  bool moved = false;
  for (int peer : fabric_.topology().neighbours())
    if (peer != fabric_.topology().rank()) moved |= progress_ring(peer);
  if (fabric_.wire()) moved |= progress_wire();
  return moved;
}

bool PostOffice::progress_ring(int peer) {
  const Topology& t = fabric_.topology();
  Ring in(fabric_.board(), t.local_of(peer), t.local_rank());
  bool moved = false;
  MessageHead head;
  while (in.peek(head)) {
    arrived(peer, head, [&](std::byte* place) { in.take(head, place); });
    moved = true;
  }
  const bool flushed = flush_ring(peer);
  // The peer may wait for what was written, or for the room that was made.
  if (moved || flushed) fabric_.board().line(t.local_of(peer)).bells[kPointToPoint].ring();
  return moved || flushed;
}

bool PostOffice::flush_ring(int peer) {
  const Topology& t = fabric_.topology();
  Ring out(fabric_.board(), t.local_rank(), t.local_of(peer));
  Route& route = routes_[peer];
  bool moved = false;
  while (!route.outbox.empty()) {
    auto [head, m] = route.outbox.front();
    if (out.space() < std::max<std::size_t>(head.piece, 1)) return moved;
    out.put(head, m ? m->data : nullptr);
    route.outbox.pop_front();
    if (m) finish(m);
    moved = true;
  }
  while (!route.streaming.empty()) {
    const MessageHandle m = route.streaming.front();
    // Small scraps cost a hand-over each, so wait for room that is worth it.
    const std::size_t piece = std::min({m->bytes - m->moved, out.space(), fabric_.board().ring_bytes() / 4});
    if (piece < std::min(m->bytes - m->moved, fabric_.board().ring_bytes() / 8)) return moved;
    out.put({MessageHead::kData, static_cast<std::uint32_t>(piece), m->tag, m->id, m->bytes}, m->data + m->moved);
    m->moved += piece;
    moved = true;
    if (m->moved < m->bytes) continue;
    route.streaming.pop_front();
    finish(m);
  }
  return moved;
}

void PostOffice::mail(int peer, const MessageHead& head, const std::byte* payload, const MessageHandle& message) {
  Parcel parcel;
  parcel.mail.resize(sizeof head + head.piece);
  std::memcpy(parcel.mail.data(), &head, sizeof head);
  if (head.piece) std::memcpy(parcel.mail.data() + sizeof head, payload, head.piece);
  parcels_.push_back(std::move(parcel));
  Parcel& stored = parcels_.back();
  stored.request = fabric_.wire()->isend(stored.mail, peer, Wire::kMail);
  if (message) finish(message);  // its payload was copied
}

void PostOffice::flush_wire(int peer) {
  Route& route = routes_[peer];
  for (; !route.outbox.empty(); route.outbox.pop_front()) {
    auto [head, m] = route.outbox.front();
    mail(peer, head, m ? m->data : nullptr, m);
  }
  for (; !route.streaming.empty(); route.streaming.pop_front()) {
    const MessageHandle m = route.streaming.front();
    for (std::size_t at = 0; at < m->bytes; at += kWirePieceBytes) {
      const std::size_t n = std::min(kWirePieceBytes, m->bytes - at);
      parcels_.push_back(
          {fabric_.wire()->isend({m->data + at, n}, peer, Wire::data_tag(m->id)), {}, m, at + n == m->bytes});
    }
  }
}

bool PostOffice::progress_wire() {
  bool moved = false;
  int from;
  std::vector<std::byte> letter;
  while (fabric_.wire()->take(Wire::kMail, from, letter)) {
    MessageHead head;
    std::memcpy(&head, letter.data(), sizeof head);
    arrived(from, head, [&](std::byte* place) {
      if (head.piece) std::memcpy(place, letter.data() + sizeof head, head.piece);
    });
    moved = true;
  }
  for (int peer = 0; peer < fabric_.topology().size(); ++peer)
    if (!is_near(peer)) flush_wire(peer);
  for (auto it = parcels_.begin(); it != parcels_.end();) {
    if (!fabric_.wire()->test(it->request)) {
      ++it;
      continue;
    }
    if (it->last) finish(it->message);
    it = parcels_.erase(it);
    moved = true;
  }
  return moved;
}

// ---- finishing ----------------------------------------------------------------------------------

void PostOffice::finish(const MessageHandle& m, std::exception_ptr error) {
  if (m->done) return;
  m->done = true;
  ++changes_;
  m->error = error;
  count_op(m->is_send ? OpKind::kSend : OpKind::kRecv, m->bytes, Clock::now() - m->started);
  open_.remove(m);
  if (m->on_done) callbacks_.push_back(std::move(m->on_done));
  done_.notify_all();
}

/// Messages whose deadline has passed. One that no peer counts on yet is only given up; else the group fails.
void PostOffice::expire() {
  const auto now = Clock::now();
  for (const MessageHandle& m : std::list<MessageHandle>(open_)) {
    if (now < m->deadline.at()) continue;
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.3g s", m->deadline.seconds());
    const std::string text = signature_text(*m) + " Timed out after " + seconds + " (timeout) waiting for " +
                             (m->peer < 0 ? "any rank" : fabric_.describe(m->peer));
    if (m->matched) return fabric_.fail(FailureKind::kTimeout, text);
    receives_.remove(m);
    if (m->is_send) routes_[m->peer].asked.erase(m->id);
    finish(m, std::make_exception_ptr(PeerTimeout("rank " + std::to_string(fabric_.topology().rank()) + " of " +
                                                  std::to_string(fabric_.topology().size()) + ", group " +
                                                  fabric_.name() + ": " + text)));
  }
}

void PostOffice::give_up(std::exception_ptr error) {
  const std::string what = open_.empty() ? "send/recv" : signature_text(*open_.front());
  const std::string who = fabric_.describe(fabric_.topology().rank());
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    fabric_.fail(FailureKind::kOther, who + " failed in " + what + ": " + e.what());
  } catch (...) {  // Ctrl-C
    fabric_.fail(FailureKind::kOther, who + " was interrupted during " + what);
  }
  for (const MessageHandle& m : std::list<MessageHandle>(open_)) finish(m, error);
  receives_.clear();
  for (Parcel& parcel : parcels_)
    if (fabric_.wire()) fabric_.wire()->abandon(parcel.request);
  // Letters stay where they are: MPI may still read them.
}

void PostOffice::run_callbacks(std::unique_lock<std::mutex>& lock) {
  if (callbacks_.empty()) return;
  std::vector<std::function<void()>> calls = std::move(callbacks_);
  callbacks_.clear();
  lock.unlock();
  for (auto& call : calls) call();
  lock.lock();
}

// ---- driving ------------------------------------------------------------------------------------

/// Moves messages until `enough()`, or until callbacks were due. Called with the lock held and driving_ false.
void PostOffice::drive(std::unique_lock<std::mutex>& lock, const std::function<bool()>& enough) {
  driving_ = true;
  Watcher watcher(*this);
  Board& board = fabric_.board();
  const Topology& t = fabric_.topology();
  try {
    std::vector<std::uint64_t> taken(t.local_size());
    while (!enough()) {
      // Read before progress(), so that room made after it looked counts as news.
      for (int local = 0; local < t.local_size(); ++local)
        taken[local] = board.ring_line(t.local_rank(), local).taken.load(std::memory_order_acquire);
      const bool moved = progress();
      const std::uint64_t changes = changes_;
      if (!callbacks_.empty()) break;  // one of them may wait for another message, and drive
      if (moved) continue;
      if (enough()) break;
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
        return changes_ != changes || stop_ || board.has_failed();
      };
      try {
        if (polls) {  // MPI has nothing to sleep on
          watcher.look_around();
          timespec nap{0, 20'000};
          nanosleep(&nap, nullptr);
        } else {
          wait_until(board, kPointToPoint, fabric_.patience(kPointToPoint), news, watcher);
          fabric_.throw_if_failed();
        }
      } catch (...) {
        lock.lock();
        throw;
      }
      lock.lock();
    }
  } catch (...) {
    give_up(std::current_exception());
  }
  driving_ = false;
  done_.notify_all();
  run_callbacks(lock);
}

void PostOffice::wait(const MessageHandle& m, double timeout_s) {
  std::unique_lock lock(mutex_);
  if (timeout_s >= 0) m->deadline = Deadline(timeout_s);
  while (!m->done) {
    if (!driving_) {
      drive(lock, [&] { return m->done; });
    } else {
      done_.wait_for(lock, kLongestSleep);
      lock.unlock();
      check_interrupt();
      lock.lock();
    }
  }
  if (m->error) std::rethrow_exception(m->error);
}

bool PostOffice::is_done(const MessageHandle& m) {
  std::lock_guard lock(mutex_);
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

void PostOffice::attend() {
  std::unique_lock lock(mutex_);
  int idle_rounds = 0;
  while (!stop_) {
    if (open_.empty()) {
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
    attention_.wait_for(lock, kGrace);
    if (!driving_ && !stop_ && !open_.empty()) drive(lock, [&] { return stop_ || open_.empty(); });
  }
}

}  // namespace accdp
