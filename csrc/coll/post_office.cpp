#include "coll/post_office.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"

namespace accdp {
namespace {

constexpr std::size_t kWirePieceBytes = 64 << 20;

constexpr std::chrono::microseconds kSenderWaits{20};  // if it does, then so soon after it asked

// Of a piece in a ring: what is worth a hand-over, and what caches keep until it is taken.
constexpr std::size_t kLeastPieceBytes = 16 << 10, kMostPieceBytes = 256 << 10;

/// Calls piece(bytes) for what goes over the wire at once; of an empty message one piece, whose end is the message's.
template <class Piece>
void for_wire_pieces(const Message& m, Piece piece) {
  std::size_t at = 0;
  do {
    piece(Bytes(m.data + at, std::min(kWirePieceBytes, m.bytes - at)));
    at += kWirePieceBytes;
  } while (at < m.bytes);
}

/// Both ends begin all pieces at once, and each takes memory of MPI's: 13 MiB for this.
constexpr std::size_t kMostInPieces = std::size_t{1} << 30;

Wire::Form form_of(const Message& m) {
  return m.is_whole || m.bytes > kMostInPieces ? Wire::Form::kWhole : Wire::Form::kPieces;
}

bool asks(const MessageHead& head) { return head.kind == MessageHead::kAsk || head.kind == MessageHead::kAskWhole; }

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
  try {
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
      const MessageHead head{MessageHead::kEager, 0, m->tag, 0, m->bytes};
      arrived(m->peer, head, [&](std::byte* place) {
        if (m->bytes) std::memcpy(place, m->data, m->bytes);
      });
      finish(m);
    } else if (may_go_ahead(*m)) {
      m->matched = true;
      Route& route = routes_[m->peer];
      route.sent_ahead += held_bytes(m->bytes, m->tag);
      if (m->tag < 0 || m->bytes <= eager_bytes(m->peer)) {
        route.outbox.push_back({{MessageHead::kEager, static_cast<std::uint32_t>(m->bytes), m->tag, 0, m->bytes}, m});
      } else {
        m->id = take_number(route);
        route.ahead.push_back(m->id);
        route.outbox.push_back({{MessageHead::kAhead, 0, m->tag, m->id, m->bytes}, nullptr});
        route.streaming.push_back(m);
      }
    } else {
      m->id = take_number(routes_[m->peer]);
      routes_[m->peer].asked[m->id] = m;
      m->is_whole = takes_device_memory(m->bytes, m->peer);
      const MessageHead::Kind kind = m->is_whole ? MessageHead::kAskWhole : MessageHead::kAsk;
      routes_[m->peer].outbox.push_back(
          {{kind, 0, m->tag, m->id, m->bytes, reinterpret_cast<std::uint64_t>(m->data)}, nullptr});
    }
    if (caller_waits) show_driving(true);  // in a moment, but the receiver may see the message sooner
    begin(*m);
    const bool needs_attendant = !caller_waits && !open_.empty();
    if (needs_attendant && !stop_ && !attendant_.joinable()) attendant_ = std::thread([this] { attend(); });
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

// ---- matching -----------------------------------------------------------------------------------

/// What came ahead has found its receive. A near peer sees that when it needs to; others hear of it with the next
/// letter, and of much at once.
void PostOffice::count_matched(int from, const MessageHead& head) {
  if (asks(head) || from == fabric_.topology().rank()) return;
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

void PostOffice::make_place(const MessageHandle& m, int from) {
  if (is_near(from)) {
    routes_[from].arriving[m->id] = m;
    return;
  }
  for_wire_pieces(*m, [&](Bytes piece) {
    parcels_.push_back({fabric_.wire()->irecv(piece, from, Wire::data_tag(m->id), form_of(*m)), {}, m});
  });
  routes_[from].unread.erase(m->id);
}

void PostOffice::grant_place(const MessageHandle& m, int from) {
  make_place(m, from);
  routes_[from].outbox.push_back({{MessageHead::kGrant, 0, m->tag, m->id, m->bytes}, nullptr});
}

/// A head has come in; `take` removes it from where it came, copying its payload.
void PostOffice::arrived(int from, const MessageHead& head, const std::function<void(std::byte*)>& take) {
  if (head.kind == MessageHead::kCount) return take(nullptr);
  Route& route = routes_[from];
  if (head.kind == MessageHead::kGrant || head.kind == MessageHead::kTaken) {
    take(nullptr);
    auto it = route.asked.find(head.id);
    if (it == route.asked.end()) return;  // the group failed meanwhile
    const MessageHandle m = it->second;
    route.asked.erase(it);
    m->matched = true;
    if (head.kind == MessageHead::kTaken) return finish(m);
    route.streaming.push_back(m);
    return;
  }
  if (head.kind == MessageHead::kData) {
    auto it = route.arriving.find(head.id);
    if (it == route.arriving.end()) {  // the group failed meanwhile
      std::vector<std::byte> dropped(head.piece);
      return take(dropped.data());
    }
    const MessageHandle m = it->second;
    take(m->data + m->moved);
    m->moved += head.piece;
    if (m->moved < m->bytes) return;
    route.arriving.erase(it);
    finish(m);
    return;
  }
  if (head.kind == MessageHead::kAhead) {
    route.unread.insert(head.id);  // until it finds its receive, which may be here
    route.next_ahead = head.id + 1;
  }
  // Not head.piece: a message to oneself has no record, and may be longer than a record can be.
  const std::size_t payload = head.kind == MessageHead::kEager ? head.bytes : 0;
  auto fits = [&](const MessageHandle& m) { return m->tag == head.tag && (m->peer < 0 || m->peer == from); };
  auto found = std::find_if(receives_.begin(), receives_.end(), fits);
  if (found == receives_.end()) {
    Unexpected u{from, head, std::vector<std::byte>(payload)};
    take(u.payload.data());
    unexpected_.push_back(std::move(u));
    return;
  }
  MessageHandle m = *found;
  receives_.erase(found);
  accept(m, from, head);
  if (m->done) {  // refused
    std::vector<std::byte> dropped(payload);
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

/// What can be done for a new message at once. What nobody has asked for stays in its ring meanwhile: it may still find
/// its receive, and then is copied once.
void PostOffice::begin(const Message& m) {
  for (int peer : fabric_.topology().neighbours())
    if (peer != fabric_.topology().rank() && (m.peer < 0 || m.peer == peer)) progress_ring(peer, false);
  if (m.peer >= 0 && !is_near(m.peer)) flush_wire(m.peer);
}

bool PostOffice::is_asked_for(int from, const MessageHead& head) const {
  if (head.kind != MessageHead::kEager && !asks(head)) return true;
  return std::any_of(receives_.begin(), receives_.end(),
                     [&](const MessageHandle& m) { return m->tag == head.tag && (m->peer < 0 || m->peer == from); });
}

bool PostOffice::progress_ring(int peer, bool takes_all) {
  const Topology& t = fabric_.topology();
  Ring in(fabric_.board(), t.local_of(peer), t.local_rank());
  bool moved = false;
  MessageHead head;
  // One ring's worth, and below too: a peer that goes on at our pace would keep a caller who only posts.
  for (std::size_t taken = 0; taken < fabric_.board().ring_bytes() && in.peek(head);
       taken += sizeof head + head.piece) {
    if (!takes_all && !is_asked_for(peer, head)) break;
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
    const std::size_t needed = std::max<std::size_t>(head.piece, 1);
    if (out.space(needed) < needed) return moved;
    out.put(head, m ? m->data : nullptr, route.writer);
    route.outbox.pop_front();
    if (m) finish(m);
    moved = true;
  }
  const std::size_t ring = fabric_.board().ring_bytes();
  for (std::size_t put = 0; put < ring && !route.streaming.empty();) {
    const MessageHandle m = route.streaming.front();
    const std::size_t most = std::min(ring / 4, std::clamp(m->bytes / 8, kLeastPieceBytes, kMostPieceBytes));
    // Small scraps cost a hand-over each, so wait for room that is worth it.
    const std::size_t room = out.space(), piece = std::min({m->bytes - m->moved, room, most});
    if (room == 0 || piece < std::min(m->bytes - m->moved, most / 2)) return moved;
    out.put({MessageHead::kData, static_cast<std::uint32_t>(piece), m->tag, m->id, m->bytes}, m->data + m->moved,
            route.writer);
    m->moved += piece;
    put += sizeof(MessageHead) + piece;
    moved = true;
    if (m->moved < m->bytes) continue;
    route.streaming.pop_front();
    finish(m);
  }
  return moved;
}

void PostOffice::mail(int peer, const MessageHead& head, const std::byte* payload, const MessageHandle& message) {
  Route& route = routes_[peer];
  const LetterHead start{route.matched, route.unread.empty() ? route.next_ahead : *route.unread.begin(), head};
  route.told_matched = start.matched;
  Parcel parcel;
  const ConstBytes first = std::as_bytes(std::span(&start, 1));
  parcel.mail.reserve(first.size() + head.piece);
  parcel.mail.assign(first.begin(), first.end());
  if (head.piece) parcel.mail.insert(parcel.mail.end(), payload, payload + head.piece);
  parcel.request = fabric_.wire()->isend(parcel.mail, peer, Wire::kMail);
  if (fabric_.wire()->test(parcel.request)) {  // short ones have mostly left
    if (message) finish(message);
    return;
  }
  parcel.message = message;  // open until the letter has left, so that somebody sees to it
  parcels_.push_back(std::move(parcel));
}

void PostOffice::flush_wire(int peer) {
  Route& route = routes_[peer];
  for (; !route.outbox.empty(); route.outbox.pop_front()) {
    auto [head, m] = route.outbox.front();
    mail(peer, head, m ? m->data : nullptr, m);
  }
  for (; !route.streaming.empty(); route.streaming.pop_front()) {
    const MessageHandle m = route.streaming.front();
    for_wire_pieces(*m, [&](Bytes piece) {
      parcels_.push_back({fabric_.wire()->isend(piece, peer, Wire::data_tag(m->id), form_of(*m)), {}, m});
    });
  }
}

bool PostOffice::progress_wire() {
  bool moved = false;
  int from;
  while (fabric_.wire()->take(Wire::kMail, from, letter_)) {
    LetterHead start;
    if (letter_.size() >= sizeof start) std::memcpy(&start, letter_.data(), sizeof start);
    if (letter_.size() < sizeof start || letter_.size() - sizeof start != start.message.piece)
      throw MismatchError(fabric_.describe(from) + " sent a letter of " + std::to_string(letter_.size()) +
                          " bytes, expected a head and what it announces");
    Route& route = routes_[from];
    route.matched_there = start.matched;
    while (!route.ahead.empty() && route.ahead.front() < start.unread_from) route.ahead.pop_front();
    const MessageHead& head = start.message;
    arrived(from, head, [&](std::byte* place) {
      if (head.piece) std::memcpy(place, letter_.data() + sizeof start, head.piece);
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
    if (it->message && !it->mail.empty())
      finish(it->message);
    else if (it->message)
      piece_moved(*it);
    it = parcels_.erase(it);
    moved = true;
  }
  return moved;
}

/// MPI may end pieces in any order. It fetches them out of the sender's memory, which has another use once the sender
/// has given up: what came counts only if the group still stood there afterwards.
void PostOffice::piece_moved(const Parcel& parcel) {
  Message& m = *parcel.message;
  m.moved += parcel.request.bytes;
  if (m.moved < m.bytes) return;
  if (!m.is_send) fabric_.throw_if_withdrawn();
  finish(parcel.message);
}

// ---- finishing ----------------------------------------------------------------------------------

void PostOffice::finish(const MessageHandle& m, std::exception_ptr error) {
  if (m->done) return;
  m->error = error;
  ++changes_;
  count_op(m->is_send ? OpKind::kSend : OpKind::kRecv, m->bytes, Clock::now() - m->started);
  open_.erase(m->place);
  if (m->on_done) callbacks_.push_back(std::move(m->on_done));
  m->done = true;
  done_.notify_all();
}

}  // namespace accdp
