// Reduction over the leaders of all nodes, of messages that they hold whole. n: nodes, S: bytes.
//   direct: every leader sends all of its own to every other and reduces, in node order. S*(n-1) bytes out of a node,
//   one
//     message's way.
//   recursive_doubling: neighbours exchange what they have and reduce, then neighbours of neighbours and so on; where n
//   is
//     no power of two, some leaders first hand theirs to the next one and get the result from it in the end. Always the
//     lower nodes' first: the node order, in pairs. At most S*(log2(n)+1) bytes, ceil(log2 n) messages' ways, 2 more
//     for what is handed over.
//   ring: a share of the message travels round the ring to its owner, reduced at each stop, and once more round as the
//     result. Each share has another order of nodes. 2*S*(n-1)/n bytes, 2*(n-1) messages' ways.
// All leaders get the same bits: equal operands in equal order, or one owner. Partial results of 16-bit floats travel
// as float32, so that they are rounded once over the nodes, as in the direct way; that doubles the bytes.
#include <bit>
#include <cstring>

#include "coll/algorithms.hpp"
#include "coll/leader_pieces.hpp"

namespace accdp {
namespace {

void send(Context& c, int to, ConstBytes data) {
  const Outgoing parcel{to, data};
  c.exchange({}, std::span(&parcel, 1));
}
void receive(Context& c, int from, Bytes data) {
  const Incoming parcel{from, data};
  c.exchange(std::span(&parcel, 1), {});
}
void trade(Context& c, int from, Bytes in, int to, ConstBytes out) {
  const Incoming incoming{from, in};
  const Outgoing outgoing{to, out};
  c.exchange(std::span(&incoming, 1), std::span(&outgoing, 1));
}

/// into = first op second; `into` may be either.
void combine(Bytes into, ConstBytes first, ConstBytes second, const Reduction& how) {
  const void* sources[] = {first.data(), second.data()};
  reduce(into.data(), sources, into.size() / element_bytes(how.type), how);
}

/// receiver: the node that gets the result, -1 for all.
void direct(Context& c, Bytes data, const Reduction& how, int receiver, Bytes room) {
  const Topology& t = c.topology();
  std::vector<Incoming> incoming;
  std::vector<Outgoing> outgoing;
  std::vector<const void*> sources;
  for (int node = 0; node < t.nodes(); ++node) {
    const Bytes place = node == t.node() ? data : room.subspan(node * data.size(), data.size());
    sources.push_back(place.data());
    if (node == t.node()) continue;
    if (receiver < 0 || receiver == t.node()) incoming.push_back({t.leader(node), place});
    if (receiver < 0 || receiver == node) outgoing.push_back({t.leader(node), data});
  }
  c.exchange(incoming, outgoing);
  if (receiver < 0 || receiver == t.node()) reduce(data.data(), sources, data.size() / element_bytes(how.type), how);
}

void recursive_doubling(Context& c, Bytes data, const Reduction& how, Bytes room) {
  const Topology& t = c.topology();
  const int me = t.node(), whole = static_cast<int>(std::bit_floor(static_cast<unsigned>(t.nodes())));
  const int rest = t.nodes() - whole;  // so many pairs of nodes, the first ones, take part as one
  const bool is_paired = me < 2 * rest;
  const Bytes theirs = room.first(data.size());
  if (is_paired && me % 2 == 0) {
    send(c, t.leader(me + 1), data);
    return receive(c, t.leader(me + 1), data);
  }
  if (is_paired) {
    receive(c, t.leader(me - 1), theirs);
    combine(data, theirs, data, how.partial());
  }
  const int place = is_paired ? me / 2 : me - rest;
  for (int distance = 1; distance < whole; distance *= 2) {
    const int other = place ^ distance;
    const int peer = t.leader(other < rest ? 2 * other + 1 : other + rest);
    trade(c, peer, theirs, peer, data);
    const Reduction& step = 2 * distance == whole ? how : how.partial();
    if (other < place)
      combine(data, theirs, data, step);
    else
      combine(data, data, theirs, step);
  }
  if (is_paired) send(c, t.leader(me - 1), data);
}

void ring(Context& c, Bytes data, const Reduction& how, Bytes room) {
  const Topology& t = c.topology();
  const int nodes = t.nodes(), me = t.node();
  const int next = t.leader((me + 1) % nodes), previous = t.leader((me + nodes - 1) % nodes);
  auto share = [&](int back) {  // of the node that many before this one
    const std::size_t each = ring_share_bytes(data.size(), nodes);
    const std::size_t begin = std::min(data.size(), (me - back + 2 * nodes) % nodes * each);
    return data.subspan(begin, std::min(each, data.size() - begin));
  };
  for (int step = 1; step < nodes; ++step) {
    const Bytes own = share(step + 1), theirs = room.first(own.size());
    trade(c, previous, theirs, next, share(step));
    combine(own, theirs, own, step + 1 == nodes ? how : how.partial());
  }
  for (int step = 0; step + 1 < nodes; ++step) trade(c, previous, share(step + 1), next, share(step));
}

}  // namespace

LeaderReduction::LeaderReduction(Context& c, const Reduction& how, ReduceAlgorithm algorithm, std::size_t most_bytes)
    : c_(c), how_(how), algorithm_(algorithm) {
  const int nodes = c.topology().nodes();
  if (algorithm == ReduceAlgorithm::kDirect) {
    room_ = c.scratch(nodes * most_bytes);
    return;
  }
  if (is_short_float(how.type)) wide_ = c.scratch(most_bytes *= partial_width(how.type));
  room_ = c.scratch(algorithm == ReduceAlgorithm::kRing ? ring_share_bytes(most_bytes, nodes) : most_bytes);
}

void LeaderReduction::run(Bytes data, int receiver) {
  if (algorithm_ == ReduceAlgorithm::kDirect) return direct(c_, data, how_, receiver, room_);
  const auto reduce_over_leaders = algorithm_ == ReduceAlgorithm::kRing ? ring : recursive_doubling;
  if (!is_short_float(how_.type)) return reduce_over_leaders(c_, data, how_, room_);
  const Bytes wide = wide_.first(partial_width(how_.type) * data.size());
  const std::size_t count = data.size() / element_bytes(how_.type);
  widen(wide.data(), data.data(), count, how_.type);
  reduce_over_leaders(c_, wide, {Datatype::kF32, how_.op, how_.divisor}, room_);
  narrow(data.data(), wide.data(), count, how_.type);
}

}  // namespace accdp
