// Gather and scatter of blocks of one size. Ranks on root's node go through its slots, chunk by chunk;
// ranks of other nodes exchange directly with root, so each byte crosses the wire once, meanwhile.
// Cost: gather ceil(S/c) steps, scatter ceil(S*k/c) steps; S bytes per remote rank.
#include <cstring>

#include "coll/algorithms.hpp"
#include "node/copy_out.hpp"

namespace accdp {
namespace {

std::size_t part(std::size_t total, std::size_t at, std::size_t most) { return std::min(most, total - at); }

}  // namespace

void gather(Context& c, ConstBytes in, const std::vector<Bytes>& outs, int root) {
  const Topology& t = c.topology();
  if (t.nodes() > 1) c.meet();
  if (!t.is_near(root)) {
    const Outgoing parcel{root, in};
    return c.exchange({}, std::span(&parcel, 1));
  }
  const bool collects = t.rank() == root;
  if (collects) copy(outs[root], in);
  std::size_t done = 0;
  do {
    const std::size_t n = part(in.size(), done, c.slot_bytes());
    if (!collects) {
      std::byte* slot = c.open();
      if (n) std::memcpy(slot, in.data() + done, n);
      c.publish();
    } else {
      c.open_unwritten();
      c.publish();
      for (int rank : t.neighbours()) {
        if (rank == root) continue;
        c.await(t.local_of(rank));
        copy_out(outs[rank].data() + done, c.slot(t.local_of(rank)), n, in.size() * c.local_size());
      }
    }
    done += n;
  } while (done < in.size());
  if (!collects || t.nodes() == 1) return;
  std::vector<Incoming> incoming;
  for (int rank = 0; rank < t.size(); ++rank)
    if (!t.is_near(rank)) incoming.push_back({rank, outs[rank]});
  c.exchange(incoming, {});
}

void scatter(Context& c, const std::vector<ConstBytes>& ins, Bytes out, int root) {
  const Topology& t = c.topology();
  if (t.nodes() > 1) c.meet();
  if (!t.is_near(root)) {
    const Incoming parcel{root, out};
    return c.exchange(std::span(&parcel, 1), {});
  }
  const bool deals = t.rank() == root;
  // Small pieces of what is short, so that the others read while root writes.
  const std::size_t most =
      std::min(c.slot_bytes() / c.local_size() / 64 * 64, node_piece_bytes(out.size(), c.slot_bytes()));
  std::size_t done = 0;
  do {
    const std::size_t n = part(out.size(), done, most);
    if (deals) {
      std::byte* slot = c.open();
      for (int rank : t.neighbours())
        if (rank != root && n) std::memcpy(slot + t.local_of(rank) * most, ins[rank].data() + done, n);
      c.publish();
    } else {
      c.open_unwritten();
      c.publish();
      c.await(t.local_of(root));
      copy_out(out.data() + done, c.slot(t.local_of(root)) + t.local_rank() * most, n, out.size());
    }
    done += n;
  } while (done < out.size());
  if (deals) copy(out, ins[root]);  // last: the others need not wait for it
  if (!deals || t.nodes() == 1) return;
  std::vector<Outgoing> outgoing;
  for (int rank = 0; rank < t.size(); ++rank)
    if (!t.is_near(rank)) outgoing.push_back({rank, ins[rank]});
  c.exchange({}, outgoing);
}

}  // namespace accdp
