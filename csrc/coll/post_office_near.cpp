// Messages between ranks of a node that need less than the whole post office: short ones that are sent or received on
// the spot, and long ones that the receiver copies out of the sender's memory.
//
// Invariants: a short message overtakes none to the same rank that is still in its outbox; a receive on the spot takes
// nothing that another receive asked for first. A sender's memory is its message until it hears kTaken, so what was
// copied counts only if the group still stands after the copy: a sender that gives up fails the group first.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "coll/post_office.hpp"
#include "node/peer_memory.hpp"

namespace accdp {
namespace {

// Between two pieces the driver looks at its other messages.
constexpr std::size_t kTakenBytes = 4 << 20;
// So that the sender goes from one to the next, and what comes last can still be taken out of its memory.
constexpr std::size_t kGrantedAhead = 2;

}  // namespace

bool PostOffice::is_short_and_near(std::size_t bytes, int peer) const {
  return is_near(peer) && peer != fabric_.topology().rank() && bytes <= fabric_.eager_bytes;
}

bool PostOffice::send_at_once(ConstBytes data, int to, std::int64_t tag) {
  if (!is_short_and_near(data.size(), to)) return false;
  const auto started = Clock::now();
  fabric_.throw_if_failed();
  const Topology& t = fabric_.topology();
  {
    const std::unique_lock lock = enter();
    Ring out(fabric_.board(), t.local_rank(), t.local_of(to));
    const std::size_t needed = std::max<std::size_t>(data.size(), 1);
    const std::size_t held = held_bytes(data.size(), tag);
    if (!routes_[to].outbox.empty() || out.space(needed) < needed || !is_allowed(to, held)) return false;
    routes_[to].sent_ahead += held;
    out.put({MessageHead::kEager, static_cast<std::uint32_t>(data.size()), tag, 0, data.size()}, data.data(),
            routes_[to].writer);
  }
  fabric_.board().line(t.local_of(to)).bells[kPointToPoint].ring();
  count_op(OpKind::kSend, data.size(), Clock::now() - started);
  return true;
}

bool PostOffice::receive_at_once(Bytes data, int from, std::int64_t tag) {
  if (from < 0 || !is_short_and_near(data.size(), from)) return false;
  const auto started = Clock::now();
  fabric_.throw_if_failed();
  const Topology& t = fabric_.topology();
  Ring in(fabric_.board(), t.local_of(from), t.local_rank());
  MessageHead head;
  std::unique_lock lock = enter();
  // Who drives takes what comes; and what came, or asked, before goes first.
  const auto has_to_queue = [&] { return driving_ || unexpected_.has(tag, from) || receives_.has(tag, from); };
  if (has_to_queue()) return false;
  if (!in.peek(head)) {
    const auto most = spin_.time();
    if (most.count() == 0) return false;
    lock.unlock();
    const bool came = look_until(most, kLooksPerClock, pause, [&] { return in.has_news(); });
    lock.lock();
    spin_.learn(came);
    if (has_to_queue() || !in.peek(head)) return false;
  }
  if (head.kind != MessageHead::kEager || head.tag != tag || head.bytes != data.size()) return false;
  in.take(head, data.data());
  count_matched(from, head);
  lock.unlock();
  fabric_.board().line(t.local_of(from)).bells[kPointToPoint].ring();  // it may wait for room
  count_op(OpKind::kRecv, data.size(), Clock::now() - started);
  return true;
}

/// Whether a long message had better come through the ring: the sender's core copies into it while this one copies out,
/// which takes about half as long as one core that reads the other's memory. But it is twice the work, and the sender
/// has to see to it: not where he computes or ranks share cores, and not beside long messages to or from others, or to
/// that rank, which keep both cores busy anyway. A sender who waits does so a moment after it asked: torch's send() is
/// an isend() and a wait(), with some microseconds of Python in between.
bool PostOffice::two_cores_copy(const Message& m, int from) {
  const RankLine& sender = fabric_.board().line(fabric_.topology().local_of(from));
  if (m.moved > 0 || fabric_.is_crowded()) return false;
  for (int peer = 0; peer < fabric_.topology().size(); ++peer) {
    const Route& route = routes_[peer];
    if (!route.asked.empty() || !route.streaming.empty()) return false;
    if (peer != from && (!route.taking.empty() || !route.arriving.empty())) return false;
  }
  const auto drives = [&] { return sender.drives.load(std::memory_order_relaxed) != 0; };
  return drives() || try_until(sender_waits_, kLooksPerClock, pause, drives);
}

/// Copies the next piece of the oldest message that is to come out of that rank's memory, or lets it come.
bool PostOffice::take_piece(int peer) {
  Route& route = routes_[peer];
  if (route.taking.empty()) return false;
  const MessageHandle m = route.taking.front();
  if (two_cores_copy(*m, peer)) {
    if (route.arriving.size() >= kGrantedAhead) return false;
    route.taking.pop_front();
    grant_place(m, peer);
    flush_ring(peer);
    fabric_.board().line(fabric_.topology().local_of(peer)).bells[kPointToPoint].ring();
    return true;
  }
  const std::size_t n = std::min(kTakenBytes, m->bytes - m->moved);
  const int error = read_peer_memory(fabric_.peer(peer).pid, m->address + m->moved, {m->data + m->moved, n});
  if (error) {
    const bool gone = error == ESRCH || fabric_.has_gone(peer);
    fabric_.fail(gone ? FailureKind::kDied : FailureKind::kOther,
                 gone ? fabric_.how_it_went(peer) + " during " + describe(*m)
                      : describe(*m) + " by " + fabric_.describe(fabric_.topology().rank()) + " out of the memory of " +
                            fabric_.describe(peer) + " failed: " + std::strerror(error));
    fabric_.throw_if_failed();
  }
  m->moved += n;
  if (m->moved < m->bytes) return true;
  fabric_.throw_if_failed();
  route.taking.pop_front();
  // With the message, which is over when the sender can hear of it: while there is no room for that, somebody drives.
  route.outbox.push_back({{MessageHead::kTaken, 0, m->tag, m->id, m->bytes}, m});
  flush_ring(peer);
  fabric_.board().line(fabric_.topology().local_of(peer)).bells[kPointToPoint].ring();
  return true;
}

}  // namespace accdp
