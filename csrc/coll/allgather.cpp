// Allgather, blocks of any size. Phases:
//   1. on the node: in each step every rank hands the next piece of its block to all others;
//   2. between nodes, leaders only: each sends its node's blocks to every other leader;
//   3. on the node: the leader broadcasts the blocks of the other nodes as one stream.
// Cost: ceil(largest block / c) + ceil(remote bytes / c) steps; each block leaves its node nodes-1 times.
#include <cstring>

#include "coll/algorithms.hpp"

namespace accdp {
namespace {

void allgather_on_node(Context& c, const std::vector<Bytes>& outs) {
  const Topology& t = c.topology();
  std::size_t largest = 0;
  for (int rank : t.neighbours()) largest = std::max(largest, outs[rank].size());
  auto piece = [&](int rank, std::size_t at) {
    const std::size_t begin = std::min(at, outs[rank].size());
    return outs[rank].subspan(begin, std::min(c.slot_bytes(), outs[rank].size() - begin));
  };
  std::size_t done = 0;
  do {
    const Bytes mine = piece(t.rank(), done);
    std::byte* slot = c.open();
    if (!mine.empty()) std::memcpy(slot, mine.data(), mine.size());
    c.publish();
    for (int rank : t.neighbours()) {
      const Bytes theirs = piece(rank, done);
      if (rank == t.rank() || theirs.empty()) continue;
      c.await(t.local_of(rank));
      std::memcpy(theirs.data(), c.slot(t.local_of(rank)), theirs.size());
    }
    done += c.slot_bytes();
  } while (done < largest);
}

}  // namespace

void allgather(Context& c, ConstBytes in, const std::vector<Bytes>& outs) {
  const Topology& t = c.topology();
  if (t.nodes() > 1) c.meet();
  copy(outs[t.rank()], in);
  if (t.size() == 1) return c.note({"alone"});
  c.note({t.nodes() > 1 ? "leaders" : "chunks", 1, t.nodes() > 1 ? in.size() : std::min(in.size(), c.slot_bytes())});
  if (t.local_size() > 1) allgather_on_node(c, outs);
  if (t.nodes() == 1) return;
  std::vector<Bytes> remote;
  std::vector<Incoming> incoming;
  std::vector<Outgoing> outgoing;
  for (int rank = 0; rank < t.size(); ++rank) {
    if (!t.is_near(rank)) {
      remote.push_back(outs[rank]);
      incoming.push_back({t.leader(t.node_of(rank)), outs[rank]});
      continue;
    }
    for (int node = 0; node < t.nodes(); ++node)
      if (node != t.node()) outgoing.push_back({t.leader(node), outs[rank]});
  }
  if (t.is_leader()) c.exchange(incoming, outgoing);
  bcast_on_node(c, remote, t.local_of(t.leader(t.node())));
}

}  // namespace accdp
