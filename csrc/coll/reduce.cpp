// Allreduce and reduce. Phases:
//   1. on the node, up to `flat_bytes`: each rank writes its data into its slot and reduces all slots
//      itself, in rank order (1 step); above: for each chunk, each rank hands every other rank the slice
//      that the other one reduces, reduces its own slice, and hands the result round (2 steps);
//   2. between nodes, up to kSmallWireBytes: every leader sends all of it to every other and reduces itself, and
//      broadcasts on its node; above: reduce_over_nodes.cpp.
// All ranks get the same bits: each element is reduced by one rank, or by all in the same order.
// Cost: 2*ceil(S/c) steps on one node; S*(nodes-1) bytes out of and into each node for short messages.
#include <cstring>

#include "coll/algorithms.hpp"
#include "node/copy_out.hpp"

namespace accdp {
namespace {

constexpr std::size_t kSmallWireBytes = 4 << 10;

struct Slice {
  std::size_t begin, bytes;
};

/// Slice i of k nearly equal ones of `bytes`, cut at multiples of a cache line.
Slice slice(std::size_t bytes, int i, int k) {
  constexpr std::size_t kLine = 64;
  const std::size_t each = (bytes / k + kLine - 1) / kLine * kLine;
  const std::size_t begin = std::min(bytes, i * each);
  return {begin, std::min(bytes - begin, i + 1 == k ? bytes : each)};
}

void reduce_flat(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) {
  std::byte* mine = c.open();
  if (!in.empty()) std::memcpy(mine, in.data(), in.size());
  c.publish();
  if (receiver >= 0 && receiver != c.local_rank()) return;
  c.await_all();
  const std::span<const void*> sources = c.sources();
  for (int rank = 0; rank < c.local_size(); ++rank) sources[rank] = c.slot(rank);
  reduce(out.data(), sources, in.size() / element_bytes(how.type), how);
}

void reduce_chunk(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver, std::size_t total) {
  const int k = c.local_size(), me = c.local_rank();
  const bool wanted = receiver < 0 || receiver == me;
  std::byte* mine = c.open();
  for (int rank = 0; rank < k; ++rank) {
    if (rank == me) continue;
    const Slice s = slice(in.size(), rank, k);
    std::memcpy(mine + s.begin, in.data() + s.begin, s.bytes);
  }
  c.publish();
  c.await_all();
  const Slice s = slice(in.size(), me, k);
  const std::span<const void*> sources = c.sources();
  for (int rank = 0; rank < k; ++rank) sources[rank] = (rank == me ? in.data() : c.slot(rank)) + s.begin;
  mine = c.open();
  reduce(mine + s.begin, sources, s.bytes / element_bytes(how.type), how);
  if (wanted) copy_out(out.data() + s.begin, mine + s.begin, s.bytes, total);
  c.publish();
  if (!wanted) return;
  c.await_all();
  for (int rank = 0; rank < k; ++rank) {
    const Slice other = slice(in.size(), rank, k);
    if (rank != me) copy_out(out.data() + other.begin, c.slot(rank) + other.begin, other.bytes, total);
  }
}

}  // namespace

void reduce_on_node(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) {
  if (c.local_size() == 1) {
    const void* alone[] = {in.data()};
    if (out.data() != in.data() || how.divisor > 1) reduce(out.data(), alone, in.size() / element_bytes(how.type), how);
    return;
  }
  if (in.size() <= c.flat_bytes()) return reduce_flat(c, in, out, how, receiver);
  for (std::size_t at = 0; at < in.size(); at += c.slot_bytes()) {
    const std::size_t n = std::min(c.slot_bytes(), in.size() - at);
    reduce_chunk(c, in.subspan(at, n), out.empty() ? out : out.subspan(at, n), how, receiver, in.size());
  }
}

namespace {

/// Short messages: every leader sends all of its own to every other, and reduces itself.
void reduce_between_leaders(Context& c, Bytes data, const Reduction& how, int receiver) {
  const Topology& t = c.topology();
  const Bytes scratch = c.scratch(t.nodes() * data.size());
  std::vector<Incoming> incoming;
  std::vector<Outgoing> outgoing;
  std::vector<const void*> sources;
  for (int node = 0; node < t.nodes(); ++node) {
    const Bytes place = node == t.node() ? data : scratch.subspan(node * data.size(), data.size());
    sources.push_back(place.data());
    if (node == t.node()) continue;
    if (receiver < 0 || receiver == t.node()) incoming.push_back({t.leader(node), place});
    if (receiver < 0 || receiver == node) outgoing.push_back({t.leader(node), data});
  }
  c.exchange(incoming, outgoing);
  if (receiver < 0 || receiver == t.node()) reduce(data.data(), sources, data.size() / element_bytes(how.type), how);
}

}  // namespace

void reduce_to(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) {
  const Topology& t = c.topology();
  if (t.nodes() == 1) return reduce_on_node(c, in, out, how, receiver < 0 ? -1 : t.local_of(receiver));
  c.meet();
  if (in.size() > kSmallWireBytes) return reduce_over_nodes(c, in, out, how, receiver);
  // The lowest rank leads on every node, so that the same ranks speak in all phases.
  const int leader = t.leader(t.node());
  const bool leads = t.is_leader();
  Bytes sum = out;
  if (leads && receiver >= 0 && receiver != t.rank())
    sum = c.scratch(in.size());  // its caller gave no place for a result
  reduce_on_node(c, in, sum, how.partial(), t.local_of(leader));
  if (leads) reduce_between_leaders(c, sum, how, receiver < 0 ? -1 : t.node_of(receiver));
  if (receiver < 0) return bcast_on_node(c, out, t.local_of(leader));
  if (!t.is_near(receiver) || receiver == leader) return;
  // The result stands at the leader of the receiver's node; the node's other ranks only keep step.
  if (!leads && receiver != t.rank()) sum = c.scratch(in.size());
  bcast_on_node(c, sum, t.local_of(leader));
}

}  // namespace accdp
