// Gather and scatter of blocks of one size. Ranks on root's node go through its slots, piece by piece;
// ranks of other nodes exchange directly with root ("pairs"), so each byte crosses the wire once, meanwhile.
// Cost: steps as of a broadcast of S (gather) or S*k (scatter; at least 32 KiB of a block) bytes; S bytes per remote
// rank.

#include "base/rounding.hpp"
#include "coll/algorithms.hpp"
#include "node/copies.hpp"

namespace accdp {
namespace {

std::size_t part(std::size_t total, std::size_t at, std::size_t most) { return std::min(most, total - at); }

void put(std::byte* to, ConstBytes from) { copy_lines(to, from.data(), from.size()); }

/// Short blocks on one node: those that give theirs away go ahead.
void gather_ahead(Context& c, ConstBytes in, const std::vector<Bytes>& outs, int root) {
  const Topology& t = c.topology();
  if (t.rank() != root) {
    c.write(c.open_short(), in, t.local_of(root));
    return c.publish_ahead();
  }
  c.open_unwritten();
  c.publish();
  copy(outs[root], in);
  for (int rank : t.neighbours())
    if (rank != root) put(outs[rank].data(), {c.short_slot(t.local_of(rank)), in.size()});
}

/// What is handed over of a block in a step.
std::size_t gather_piece(const Context& c, std::size_t block) {
  return std::min(block, node_piece_bytes(block, c.slot_bytes(), c.shape().is_crowded));
}
std::size_t scatter_piece(const Context& c, std::size_t block) {
  return std::min(block, scatter_piece_bytes(block, c.local_size(), c.slot_bytes(), c.shape().is_crowded));
}

/// Blocks of root's node, piece by piece.
void gather_on_node(Context& c, ConstBytes in, const std::vector<Bytes>& outs, int root) {
  const Topology& t = c.topology();
  const std::size_t most = gather_piece(c, in.size());
  std::size_t done = 0;
  do {
    const std::size_t n = part(in.size(), done, most);
    if (t.rank() != root) {
      std::byte* slot = c.open(n);
      c.write(slot, in.subspan(done, n), t.local_of(root));
      c.publish();
    } else {
      c.open_unwritten();
      c.publish();
      for (int rank : t.neighbours()) {
        if (rank == root) continue;
        c.await(t.local_of(rank));
        copy_out(outs[rank].data() + done, c.slot(t.local_of(rank)), n, is_past_own_caches(in.size() * c.local_size()));
      }
    }
    done += n;
  } while (done < in.size());
}

/// Short blocks on one node: root goes ahead, the others wait for it alone.
void scatter_ahead(Context& c, const std::vector<ConstBytes>& ins, Bytes out, int root) {
  const Topology& t = c.topology();
  if (t.rank() == root) {
    std::byte* slot = c.open_short();
    for (int rank : t.neighbours())
      if (rank != root) c.write(slot + t.local_of(rank) * out.size(), ins[rank], t.local_of(rank));
    c.publish_ahead();
    return copy(out, ins[root]);
  }
  c.open_unwritten();
  c.publish_ahead();
  c.await(t.local_of(root));
  put(out.data(), {c.short_slot(t.local_of(root)) + t.local_rank() * out.size(), out.size()});
}

/// Blocks of root's node, piece by piece; all lie in root's slot.
void scatter_on_node(Context& c, const std::vector<ConstBytes>& ins, Bytes out, int root) {
  const Topology& t = c.topology();
  const std::size_t most = scatter_piece(c, out.size()), stride = whole_lines(most);
  std::size_t done = 0;
  do {
    const std::size_t n = part(out.size(), done, most);
    if (t.rank() == root) {
      std::byte* slot = c.open(c.local_size() * stride);
      for (int rank : t.neighbours())
        if (rank != root) c.write(slot + t.local_of(rank) * stride, ins[rank].subspan(done, n), t.local_of(rank));
      c.publish();
    } else {
      c.open_unwritten();
      c.publish();
      c.await(t.local_of(root));
      copy_out(out.data() + done, c.slot(t.local_of(root)) + t.local_rank() * stride, n,
               is_past_own_caches(out.size()));
    }
    done += n;
  } while (done < out.size());
}

/// Before root exchanges with other nodes: a root that does not lead waits for who has compared signatures with them.
void meet_for(Context& c, int root) {
  const Topology& t = c.topology();
  if (t.nodes() == 1) return;
  c.meet();
  if (t.is_near(root) && t.leader(t.node()) != root) c.meet();
}

/// What both do unless blocks go along with the signatures; on one node a piece of a block in a step.
Way way_of(Context& c, std::size_t block, std::size_t piece) {
  if (c.topology().nodes() > 1) return {"pairs", 1, block};
  return {"chunks", 1, piece};
}

}  // namespace

void gather(Context& c, ConstBytes in, const std::vector<Bytes>& outs, int root) {
  const Topology& t = c.topology();
  if (t.size() == 1) {
    c.note({"alone"});
    return copy(outs[root], in);
  }
  if (!c.has_met() && goes_with_signatures(in.size() * c.shape().node_ranks(), in.size() * t.size(), c.shape()))
    return gather_with_signatures(c, in, outs, root);
  c.note(way_of(c, in.size(), gather_piece(c, in.size())));
  if (c.may_go_ahead(in.size())) return gather_ahead(c, in, outs, root);
  meet_for(c, root);
  if (!t.is_near(root)) {
    const Outgoing parcel{root, in};
    return c.exchange({}, std::span(&parcel, 1));
  }
  Exchange others(c);
  if (t.rank() == root) {
    for (int rank = 0; rank < t.size(); ++rank)
      if (!t.is_near(rank)) others.receive({rank, outs[rank]});
    copy(outs[root], in);
  }
  if (c.local_size() > 1) gather_on_node(c, in, outs, root);
  others.await_all();
}

void scatter(Context& c, const std::vector<ConstBytes>& ins, Bytes out, int root) {
  const Topology& t = c.topology();
  if (t.size() == 1) {
    c.note({"alone"});
    return copy(out, ins[root]);
  }
  if (!c.has_met() && scatters_with_signatures(out.size(), c.shape()))
    return scatter_with_signatures(c, ins, out, root);
  c.note(way_of(c, out.size(), scatter_piece(c, out.size())));
  if (c.may_go_ahead(out.size() * c.local_size())) return scatter_ahead(c, ins, out, root);
  meet_for(c, root);
  if (!t.is_near(root)) {
    const Incoming parcel{root, out};
    return c.exchange(std::span(&parcel, 1), {});
  }
  const bool deals = t.rank() == root;
  Exchange others(c);
  for (int rank = 0; deals && rank < t.size(); ++rank)
    if (!t.is_near(rank)) others.send({rank, ins[rank]});
  if (c.local_size() > 1) scatter_on_node(c, ins, out, root);
  if (deals) copy(out, ins[root]);  // last, while the others read the last pieces: so these need not be small
  others.await_all();
}

}  // namespace accdp
