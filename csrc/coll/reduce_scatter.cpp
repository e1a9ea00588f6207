// Reduce-scatter, blocks of any size. On one node: in each step every rank hands every other rank a
// piece of that rank's block; the owner reduces the pieces in rank order. On several nodes:
//   1. on each node every block is reduced to the leader;
//   2. each leader sends the blocks of the other nodes' ranks to those nodes' leaders and reduces what
//      it receives with its own, in node order;
//   3. on the node the leader hands each rank its block.
// Cost: ceil(largest block * k / c) steps on one node. On several, 2*ceil(S/c) steps per block, each
// block leaves every node but its own once; the leader holds all blocks once and its own nodes times.
#include <cstring>

#include "coll/algorithms.hpp"

namespace accdp {
namespace {

std::size_t largest(const std::vector<ConstBytes>& blocks, const std::vector<int>& ranks) {
  std::size_t most = 0;
  for (int rank : ranks) most = std::max(most, blocks[rank].size());
  return most;
}

/// Room in a slot for each of its readers: whole cache lines.
std::size_t share(const Context& c) { return c.slot_bytes() / c.local_size() / 64 * 64; }

template <class Block>
Block piece(const Block& block, std::size_t at, std::size_t most) {
  const std::size_t begin = std::min(at, block.size());
  return block.subspan(begin, std::min(most, block.size() - begin));
}

void reduce_scatter_on_node(Context& c, const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how) {
  const Topology& t = c.topology();
  const std::size_t most = share(c), total = largest(ins, t.neighbours());
  std::size_t done = 0;
  do {
    std::byte* slot = c.open();
    for (int rank : t.neighbours()) {
      const ConstBytes part = piece(ins[rank], done, most);
      if (rank != t.rank() && !part.empty()) std::memcpy(slot + t.local_of(rank) * most, part.data(), part.size());
    }
    c.publish();
    c.await_all();
    const ConstBytes mine = piece(ins[t.rank()], done, most);
    std::vector<const void*> sources;
    for (int rank : t.neighbours())
      sources.push_back(rank == t.rank() ? mine.data() : c.slot(t.local_of(rank)) + t.local_rank() * most);
    if (!mine.empty()) reduce(piece(out, done, most).data(), sources, mine.size() / element_bytes(how.type), how);
    done += most;
  } while (done < total);
}

/// The leader's `blocks` (by group rank, this node's only) go to their ranks.
void scatter_on_node(Context& c, const std::vector<ConstBytes>& blocks, Bytes out, std::size_t total) {
  const Topology& t = c.topology();
  const std::size_t most = share(c);
  const int leader = t.leader(t.node());
  for (std::size_t done = 0; done < total; done += most) {
    if (t.rank() == leader) {
      std::byte* slot = c.open();
      for (int rank : t.neighbours()) {
        const ConstBytes part = piece(blocks[rank], done, most);
        if (rank != leader && !part.empty()) std::memcpy(slot + t.local_of(rank) * most, part.data(), part.size());
      }
      c.publish();
    } else {
      c.open_unwritten();
      c.publish();
      const Bytes part = piece(out, done, most);
      c.await(t.local_of(leader));
      if (!part.empty()) std::memcpy(part.data(), c.slot(t.local_of(leader)) + t.local_rank() * most, part.size());
    }
  }
}

}  // namespace

void reduce_scatter(Context& c, const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how) {
  const Topology& t = c.topology();
  if (t.nodes() == 1) {
    c.note({"slices", 1, std::min(out.size(), share(c))});
    return reduce_scatter_on_node(c, ins, out, how);
  }
  c.note({"leaders", 1, out.size()});
  c.meet();
  const int leader = t.leader(t.node());
  const bool leads = t.is_leader();
  std::vector<Bytes> sums(t.size());  // of this node
  for (int rank = 0; rank < t.size(); ++rank) {
    if (leads) sums[rank] = c.scratch(ins[rank].size());
    reduce_on_node(c, ins[rank], sums[rank], how.partial(), t.local_of(leader));
  }
  std::vector<ConstBytes> results(t.size());
  if (leads) {
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing;
    std::vector<std::vector<const void*>> sources(t.size());
    for (int node = 0; node < t.nodes(); ++node) {
      const bool here = node == t.node();
      for (int rank : t.members(node))
        if (!here) outgoing.push_back({t.leader(node), sums[rank]});
      for (int rank : t.neighbours()) {
        const Bytes place = here ? sums[rank] : c.scratch(ins[rank].size());
        sources[rank].push_back(place.data());
        if (!here) incoming.push_back({t.leader(node), place});
      }
    }
    c.exchange(incoming, outgoing);
    for (int rank : t.neighbours()) {
      const Bytes result = rank == t.rank() ? out : sums[rank];
      reduce(result.data(), sources[rank], result.size() / element_bytes(how.type), how);
      results[rank] = result;
    }
  }
  if (t.local_size() > 1) scatter_on_node(c, results, out, largest(ins, t.neighbours()));
}

}  // namespace accdp
