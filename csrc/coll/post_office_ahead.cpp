// Which messages leave before their receiver asks for them, and what they are known by there.
#include <algorithm>

#include "coll/post_office.hpp"
#include "mpi/wire.hpp"
#include "node/board.hpp"

namespace accdp {
namespace {

// Of longer messages the way of ask and grant is a small part, and what nobody has asked for is copied once more.
constexpr std::size_t kMostAheadBytes = 256 << 10;

}  // namespace

/// To another node a second message takes longer than the copies into a letter and out of it.
std::size_t PostOffice::eager_bytes(int peer) const {
  return is_near(peer) ? fabric_.eager_bytes : Wire::kAtOnceBytes - sizeof(LetterHead);
}

/// Whether the receiver then holds no more than its allowance; on a node one message at the least.
bool PostOffice::is_allowed(int peer, std::size_t held) {
  Route& route = routes_[peer];
  const std::size_t most = is_near(peer) ? std::max(kAllowanceBytes, held) : kAllowanceBytes;
  const auto fits = [&] { return route.sent_ahead - route.matched_there + held <= most; };
  if (held == 0 || fits() || !is_near(peer)) return held == 0 || fits();
  const int here = fabric_.topology().local_rank();
  const RingLine& line = fabric_.board().ring_line(here, fabric_.topology().local_of(peer));
  route.matched_there = line.matched.load(std::memory_order_acquire);
  return fits();
}

/// Pieces of a long message that went ahead lie in MPI by its tag until it finds its receive: no other to that rank may
/// have the tag meanwhile.
void PostOffice::skip_taken_tags(const Route& route) {
  while (std::ranges::any_of(route.ahead, [&](std::uint64_t id) { return has_next_tag(id); })) ++next_id_;
}
std::uint64_t PostOffice::take_number(const Route& route) {
  skip_taken_tags(route);
  return next_id_++;
}
bool PostOffice::has_next_tag(std::uint64_t id) const { return Wire::data_tag(id) == Wire::data_tag(next_id_); }

/// Whether a message leaves before the receiver asks for it.
bool PostOffice::may_go_ahead(const Message& m) {
  if (takes_device_memory(m.bytes, m.peer)) return false;
  const std::size_t most = is_near(m.peer) ? fabric_.eager_bytes : kMostAheadBytes;
  if (m.tag >= 0 && (m.bytes > most || !is_allowed(m.peer, held_bytes(m.bytes, m.tag)))) return false;
  if (m.tag < 0 || m.bytes <= eager_bytes(m.peer)) return true;
  // It would lie in MPI by its tag, where one that the receiver has yet to ask for may have the same.
  const Route& route = routes_[m.peer];
  skip_taken_tags(route);
  return route.ahead.size() <= Wire::kDataTags / 2 &&
         std::ranges::none_of(route.asked, [&](const auto& asked) { return has_next_tag(asked.first); });
}

}  // namespace accdp
