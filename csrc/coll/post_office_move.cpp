// How messages of a group move: near ones through rings (node/ring.hpp), others over the wire.
#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "coll/post_office.hpp"

namespace accdp {
namespace {

constexpr std::size_t kWirePieceBytes = 64 << 20;

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

}  // namespace

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
  if (head.kind != MessageHead::kEager && !head.asks()) return true;
  return receives_.has(head.tag, from);
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

void PostOffice::make_place(const MessageHandle& m, int from) {
  if (is_near(from)) {
    routes_[from].arriving[m->id] = m;
    return;
  }
  const Message* const before = std::exchange(at_hand_, m.get());
  for_wire_pieces(*m, [&](Bytes piece) {
    parcels_.push_back({fabric_.wire()->irecv(piece, from, Wire::data_tag(m->id), form_of(*m)), {}, m});
  });
  at_hand_ = before;
  routes_[from].unread.erase(m->id);
}

void PostOffice::mail(int peer, const MessageHead& head, const std::byte* payload, const MessageHandle& message) {
  Route& route = routes_[peer];
  const LetterHead start{route.matched, route.unread.empty() ? route.next_ahead : *route.unread.begin(), head};
  route.told_matched = start.matched;
  Parcel parcel;
  parcel.mail = std::move(left_letter_);
  const ConstBytes first = std::as_bytes(std::span(&start, 1));
  parcel.mail.reserve(first.size() + head.piece);
  parcel.mail.assign(first.begin(), first.end());
  if (head.piece) parcel.mail.insert(parcel.mail.end(), payload, payload + head.piece);
  parcel.request = fabric_.wire()->isend(parcel.mail, peer, Wire::kMail);
  if (fabric_.wire()->test(parcel.request)) {  // short ones have mostly left
    left_letter_ = std::move(parcel.mail);
    if (message) finish(message);
    return;
  }
  parcel.message = message;  // open until the letter has left, so that somebody sees to it
  parcels_.push_back(std::move(parcel));
}

void PostOffice::flush_wire(int peer) {
  Route& route = routes_[peer];
  const Message* const before = at_hand_;
  for (; !route.outbox.empty(); route.outbox.pop_front()) {
    auto [head, m] = route.outbox.front();
    if (m) at_hand_ = m.get();
    mail(peer, head, m ? m->data : nullptr, m);
    at_hand_ = before;
  }
  for (; !route.streaming.empty(); route.streaming.pop_front()) {
    const MessageHandle m = route.streaming.front();
    at_hand_ = m.get();
    for_wire_pieces(*m, [&](Bytes piece) {
      parcels_.push_back({fabric_.wire()->isend(piece, peer, Wire::data_tag(m->id), form_of(*m)), {}, m});
    });
    at_hand_ = before;
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
    at_hand_ = it->message.get();
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
  at_hand_ = nullptr;
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

}  // namespace accdp
