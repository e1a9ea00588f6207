// What becomes of a message until it has its place: asked for, announced or matched (it moves in post_office_move.cpp).
#include "coll/post_office.hpp"

#include <cstring>

#include "base/error.hpp"

namespace accdp {
namespace {

constexpr std::chrono::microseconds kSenderWaits{20};  // if it does, then so soon after it asked

}  // namespace

PostOffice::PostOffice(Fabric& fabric)
    : fabric_(fabric),
      routes_(fabric.topology().size()),
      spin_(fabric.patience(kPointToPoint).spin),
      sender_waits_(kSenderWaits),
      wire_patience_(fabric.wire_patience) {}

MessageHandle PostOffice::send(ConstBytes data, int to, std::int64_t tag, double timeout_s, bool caller_waits) {
  auto message = std::make_shared<Message>(true, to, tag, const_cast<std::byte*>(data.data()), data.size(), timeout_s);
  post(message, caller_waits);
  return message;
}

MessageHandle PostOffice::receive(Bytes data, int from, std::int64_t tag, double timeout_s, bool caller_waits) {
  auto message = std::make_shared<Message>(false, from, tag, data.data(), data.size(), timeout_s);
  post(message, caller_waits);
  return message;
}

void PostOffice::post(const MessageHandle& m, bool caller_waits) {
  fabric_.throw_if_failed();
  std::unique_lock lock = enter();
  if (fabric_.board().has_failed()) fabric_.throw_if_failed();  // while this thread waited for the lock
  m->place = open_.insert(open_.end(), m);
  ++changes_;
  ++visits_;
  at_hand_ = m.get();
  try {
    const Fabric::ForMessages their_error;
    if (!m->is_send)
      match(m);
    else if (m->peer == fabric_.topology().rank())
      send_here(m);
    else if (may_go_ahead(*m))
      send_ahead(m);
    else
      ask(m);
    if (caller_waits) show_driving(true);  // in a moment, but the receiver may see the message sooner
    begin(*m);
    const bool needs_attendant = !caller_waits && !open_.empty();
    if (needs_attendant && !stop_ && !attendant_.joinable()) attendant_ = std::thread([this] { attend(); });
    at_hand_ = nullptr;
  } catch (...) {
    give_up(std::current_exception());
  }
  if (!open_.empty()) {
    if (!caller_waits && resting_) attention_.notify_one();
    // The thread that drives may sleep with what it knew before this message came.
    if (driving_) {
      Bell& bell = fabric_.board().mine().bells[kPointToPoint];
      bell.ring();
    }
  }
  run_callbacks(lock);
}

// ---- the ways of a message ----------------------------------------------------------------------

/// A receive: what came before it may be its message.
void PostOffice::match(const MessageHandle& m) {
  const std::optional<Unexpected> came = unexpected_.take(m->tag, m->peer);
  if (!came) return receives_.put(m->tag, m->peer, m);
  accept(m, came->from, came->head);
  if (came->head.kind != MessageHead::kEager || m->done) return;
  if (!came->payload.empty()) std::memcpy(m->data, came->payload.data(), came->payload.size());
  finish(m);
}

/// To oneself: as if it had come in whole, so that send never waits for the receive.
void PostOffice::send_here(const MessageHandle& m) {
  const MessageHead head{MessageHead::kEager, 0, m->tag, 0, m->bytes};
  arrived(m->peer, head, [&](std::byte* place) {
    if (m->bytes) std::memcpy(place, m->data, m->bytes);
  });
  finish(m);
}

/// Without waiting for the receive: in one piece if it is short, else as a stream that the head announces.
void PostOffice::send_ahead(const MessageHandle& m) {
  m->matched = true;
  Route& route = routes_[m->peer];
  route.sent_ahead += held_bytes(m->bytes, m->tag);
  if (m->tag < 0 || m->bytes <= eager_bytes(m->peer)) {
    route.outbox.push_back({{MessageHead::kEager, static_cast<std::uint32_t>(m->bytes), m->tag, 0, m->bytes}, m});
    return;
  }
  m->id = take_number(route);
  route.ahead.push_back(m->id);
  route.outbox.push_back({{MessageHead::kAhead, 0, m->tag, m->id, m->bytes}, nullptr});
  route.streaming.push_back(m);
}

/// The receiver grants a place, or takes the message itself from where it lies.
void PostOffice::ask(const MessageHandle& m) {
  Route& route = routes_[m->peer];
  m->id = take_number(route);
  route.asked[m->id] = m;
  m->is_whole = takes_device_memory(m->bytes, m->peer);
  const MessageHead::Kind kind = m->is_whole ? MessageHead::kAskWhole : MessageHead::kAsk;
  route.outbox.push_back({{kind, 0, m->tag, m->id, m->bytes, reinterpret_cast<std::uint64_t>(m->data)}, nullptr});
}

// ---- matching -----------------------------------------------------------------------------------

/// What came ahead has found its receive. A near peer sees that when it needs to; others hear of it with the next
/// letter, and of much at once.
void PostOffice::count_matched(int from, const MessageHead& head) {
  if (head.asks() || from == fabric_.topology().rank()) return;
  Route& route = routes_[from];
  route.matched += held_bytes(head.bytes, head.tag);
  if (is_near(from)) {
    const Topology& t = fabric_.topology();
    RingLine& line = fabric_.board().ring_line(t.local_of(from), t.local_rank());
    return line.matched.store(route.matched, std::memory_order_release);
  }
  if (route.matched - route.told_matched < kAllowanceBytes / 2) return;
  route.told_matched = route.matched;
  route.outbox.push_back({{MessageHead::kCount, 0, head.tag, 0, 0}, nullptr});
}

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
  count_matched(from, head);
  try {
    check_size(*m, from, head);
  } catch (...) {
    finish(m, std::current_exception());
    return;
  }
  if (head.kind != MessageHead::kEager) grant(m, from, head);
}

void PostOffice::grant(const MessageHandle& m, int from, const MessageHead& head) {
  m->id = head.id;
  m->is_whole = head.kind == MessageHead::kAskWhole;
  if (head.kind == MessageHead::kAhead) return make_place(m, from);
  if (fabric_.can_read(from)) {
    m->address = head.address;
    routes_[from].taking.push_back(m);  // or it gets a place after all, when its turn comes
    return;
  }
  grant_place(m, from);
}

void PostOffice::grant_place(const MessageHandle& m, int from) {
  make_place(m, from);
  routes_[from].outbox.push_back({{MessageHead::kGrant, 0, m->tag, m->id, m->bytes}, nullptr});
}

/// A head has come in; `take` removes it from where it came, copying its payload.
void PostOffice::arrived(int from, const MessageHead& head, const Take& take) {
  switch (head.kind) {
    case MessageHead::kCount: return take(nullptr);
    case MessageHead::kGrant:
    case MessageHead::kTaken: take(nullptr); return answered(from, head);
    case MessageHead::kData: return continued(from, head, take);
    default: return begun(from, head, take);
  }
}

/// The receiver of what asked has a place for it, or has taken it.
void PostOffice::answered(int from, const MessageHead& head) {
  Route& route = routes_[from];
  const auto it = route.asked.find(head.id);
  if (it == route.asked.end()) return;  // the group failed meanwhile
  const MessageHandle m = it->second;
  route.asked.erase(it);
  m->matched = true;
  if (head.kind == MessageHead::kTaken)
    finish(m);
  else
    route.streaming.push_back(m);
}

/// A piece of a message that has its receive.
void PostOffice::continued(int from, const MessageHead& head, const Take& take) {
  Route& route = routes_[from];
  const auto it = route.arriving.find(head.id);
  if (it == route.arriving.end()) return drop(head.piece, take);  // the group failed meanwhile
  const MessageHandle m = it->second;
  take(m->data + m->moved);
  m->moved += head.piece;
  if (m->moved < m->bytes) return;
  route.arriving.erase(it);
  finish(m);
}

/// The head of a message: its receive may wait for it.
void PostOffice::begun(int from, const MessageHead& head, const Take& take) {
  if (head.kind == MessageHead::kAhead) {
    Route& route = routes_[from];
    route.unread.insert(head.id);  // until it finds its receive, which may be here
    route.next_ahead = head.id + 1;
  }
  // Not head.piece: a message to oneself has no record, and may be longer than a record can be.
  const std::size_t payload = head.kind == MessageHead::kEager ? head.bytes : 0;
  const std::optional<MessageHandle> found = receives_.take(head.tag, from);
  if (!found) {
    Unexpected u{from, head, std::vector<std::byte>(payload)};
    take(u.payload.data());
    return unexpected_.put(head.tag, from, std::move(u));
  }
  const MessageHandle& m = *found;
  accept(m, from, head);
  if (m->done) return drop(payload, take);  // refused
  take(m->data);
  if (head.kind == MessageHead::kEager) finish(m);
}

void PostOffice::drop(std::size_t bytes, const Take& take) {
  std::vector<std::byte> dropped(bytes);
  take(dropped.data());
}

// ---- finishing ----------------------------------------------------------------------------------

void PostOffice::finish(const MessageHandle& m, std::exception_ptr error) {
  if (m->done) return;
  m->error = error;
  if (m->is_send && error && !lost_) lost_ = error;
  ++changes_;
  count_op(m->is_send ? OpKind::kSend : OpKind::kRecv, m->bytes, Clock::now() - m->started);
  open_.erase(m->place);
  if (m->on_done) callbacks_.push_back(std::move(m->on_done));
  m->done = true;
  done_.notify_all();
}

}  // namespace accdp
