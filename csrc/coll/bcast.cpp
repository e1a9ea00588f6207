// Broadcast. Phases, for each chunk:
//   1. between nodes, leaders only (root on its own node): receive the chunk from the leader before,
//      pass it on; a chain where the message has more chunks than there are nodes, else a binomial tree;
//   2. on the node: the leader writes the chunk into its slot, the others copy it out.
// The leader's next chunk travels while the node copies this one. A rank alone in phase 2 copies nothing.
// Cost: ceil(S/c) steps; S bytes into and out of each node (chain), S*log2(nodes) out of the root (tree).
#include <cstring>

#include "coll/algorithms.hpp"

namespace accdp {
namespace {

/// Copies `bytes` at `offset` of the concatenation of `spans` to or from `memory`.
template <class Copy>
void walk(const std::vector<Bytes>& spans, std::size_t offset, std::size_t bytes, Copy copy) {
  for (const Bytes& span : spans) {
    if (bytes == 0) return;
    if (offset >= span.size()) {
      offset -= span.size();
      continue;
    }
    const std::size_t n = std::min(bytes, span.size() - offset);
    copy(span.data() + offset, n);
    bytes -= n;
    offset = 0;
  }
}

/// Parent and children of this node in the tree over nodes rooted at the root's node.
struct Relay {
  int parent = -1;  // leader's rank
  std::vector<int> children;
};

Relay relay(const Topology& t, int root, bool chain) {
  const int nodes = t.nodes(), first = t.node_of(root);
  const int place = (t.node() - first + nodes) % nodes;
  auto leader_at = [&](int p) { return t.leader((p + first) % nodes, root); };
  Relay r;
  if (chain) {
    if (place > 0) r.parent = leader_at(place - 1);
    if (place + 1 < nodes) r.children.push_back(leader_at(place + 1));
    return r;
  }
  int bit = 1;
  for (; bit < nodes; bit <<= 1)
    if (place & bit) {
      r.parent = leader_at(place - bit);
      break;
    }
  for (bit >>= 1; bit > 0; bit >>= 1)
    if (place + bit < nodes) r.children.push_back(leader_at(place + bit));
  return r;
}

void bcast_over_nodes(Context& c, Bytes data, int root) {
  const Topology& t = c.topology();
  const int leader = t.leader(t.node(), root);
  const bool leads = leader == t.rank();
  const std::size_t chunk = c.slot_bytes();
  const std::size_t chunks = (data.size() + chunk - 1) / chunk;
  const Relay r = relay(t, root, chunks > std::size_t(t.nodes()));
  auto piece = [&](std::size_t i) { return data.subspan(i * chunk, std::min(chunk, data.size() - i * chunk)); };
  c.meet();
  constexpr std::size_t kAhead = 4;  // receives posted before their chunk is needed
  std::vector<Wire::Request> receives, sends;
  try {
    for (std::size_t i = 0; i < chunks; ++i) {
      if (leads && r.parent >= 0) {
        while (receives.size() < chunks && receives.size() < i + kAhead)
          receives.push_back(c.irecv({r.parent, piece(receives.size())}));
        c.wait(receives[i]);
      }
      if (leads)
        for (int child : r.children) sends.push_back(c.isend({child, piece(i)}));
      bcast_on_node(c, {piece(i)}, t.local_of(leader));
    }
    for (Wire::Request& send : sends) c.wait(send);
  } catch (...) {
    for (Wire::Request& request : receives) c.abandon(request);
    for (Wire::Request& request : sends) c.abandon(request);
    throw;
  }
}

}  // namespace

void copy(Bytes to, ConstBytes from) {
  if (to.data() != from.data() && !from.empty()) std::memmove(to.data(), from.data(), from.size());
}

void bcast_on_node(Context& c, const std::vector<Bytes>& spans, int source) {
  if (c.local_size() == 1) return;
  std::size_t total = 0;
  for (const Bytes& span : spans) total += span.size();
  std::size_t done = 0;
  do {
    const std::size_t n = std::min(c.slot_bytes(), total - done);
    if (c.local_rank() == source) {
      std::byte* slot = c.open();
      walk(spans, done, n, [&](std::byte* at, std::size_t bytes) { std::memcpy(slot, at, bytes), slot += bytes; });
      c.publish();
    } else {
      c.open_unwritten();
      c.publish();
      c.await(source);
      const std::byte* slot = c.slot(source);
      walk(spans, done, n, [&](std::byte* at, std::size_t bytes) { std::memcpy(at, slot, bytes), slot += bytes; });
    }
    done += n;
  } while (done < total);
}

void bcast(Context& c, Bytes data, int root) {
  if (c.topology().nodes() > 1)
    bcast_over_nodes(c, data, root);
  else
    bcast_on_node(c, {data}, c.topology().local_of(root));
}

}  // namespace accdp
