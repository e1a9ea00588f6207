// All-to-all, blocks of any size. On the node: each slot begins with the sizes that its rank sends to
// the node's ranks, from which all know the number of steps and each receiver checks its own sizes
// before anything is written; in each step every rank hands every other its next piece, and writes what came in it
// when it has read as much of all its own blocks, which may therefore lie where the results go. Ranks of other
// nodes exchange sizes and then blocks directly, in pieces (piecewise_exchange.hpp), so each byte crosses the wire
// once. Cost: ceil(largest block * k / c) steps; every remote block once on the wire.
#include <algorithm>
#include <cstring>
#include <utility>

#include "coll/algorithms.hpp"
#include "coll/piecewise_exchange.hpp"
#include "node/copies.hpp"

namespace accdp {
namespace {

[[noreturn]] void fail_sizes(Context& c, int from, std::uint64_t sends, int to, std::size_t expects) {
  c.fail_mismatch(c.what() + ": " + c.describe(from) + " sends " + std::to_string(sends) + " bytes to " +
                  c.describe(to) + ", which expects " + std::to_string(expects));
}

void alltoall_on_node(Context& c, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs) {
  const Topology& t = c.topology();
  const int k = t.local_size();
  const std::size_t table_bytes = alltoall_table_bytes(k), most = alltoall_share_bytes(k, c.slot_bytes());
  std::size_t largest = 0, total = 0, done = 0;
  for (int rank : t.neighbours()) total += outs[rank].size();
  do {
    std::byte* slot = c.open();
    for (int rank : t.neighbours()) {
      const int local = t.local_of(rank);
      const std::uint64_t bytes = ins[rank].size();
      std::memcpy(slot + local * sizeof bytes, &bytes, sizeof bytes);
      if (rank == t.rank() || done >= bytes) continue;
      c.write(slot + table_bytes + local * most, ins[rank].subspan(done, std::min(most, bytes - done)), local);
    }
    c.publish();
    c.await_all();
    if (done == 0) {
      for (int rank : t.neighbours())
        for (int other : t.neighbours()) {
          std::uint64_t bytes;
          std::memcpy(&bytes, c.slot(t.local_of(rank)) + t.local_of(other) * sizeof bytes, sizeof bytes);
          largest = std::max<std::size_t>(largest, rank == other ? 0 : bytes);
          if (other == t.rank() && bytes != outs[rank].size()) fail_sizes(c, rank, bytes, other, outs[rank].size());
        }
      copy(outs[t.rank()], ins[t.rank()]);
    }
    for (int rank : t.neighbours()) {
      if (rank == t.rank() || done >= outs[rank].size()) continue;
      copy_out(outs[rank].data() + done, c.slot(t.local_of(rank)) + table_bytes + t.local_rank() * most,
               std::min(most, outs[rank].size() - done), is_past_own_caches(total));
    }
    done += most;
  } while (done < largest);
}

/// Sizes first: MPI would cut a message that does not fit, or write less than was expected.
void compare_sizes_between_nodes(Context& c, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs) {
  const Topology& t = c.topology();
  std::vector<std::uint64_t> mine(t.size()), theirs(t.size());
  std::vector<Incoming> incoming;
  std::vector<Outgoing> outgoing;
  for (int rank = 0; rank < t.size(); ++rank) {
    if (t.is_near(rank)) continue;
    mine[rank] = ins[rank].size();
    incoming.push_back({rank, std::as_writable_bytes(std::span(&theirs[rank], 1))});
    outgoing.push_back({rank, std::as_bytes(std::span(&mine[rank], 1))});
  }
  c.exchange(incoming, outgoing);
  for (int rank = 0; rank < t.size(); ++rank)
    if (!t.is_near(rank) && theirs[rank] != outs[rank].size())
      fail_sizes(c, rank, theirs[rank], t.rank(), outs[rank].size());
}

void exchange_blocks(Context& c, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs,
                     std::size_t piece_bytes) {
  const Topology& t = c.topology();
  std::vector<Incoming> incoming;
  std::vector<Outgoing> outgoing;
  for (int i = 1; i < t.size(); ++i) {  // each rank begins with another peer
    const int to = (t.rank() + i) % t.size(), from = (t.rank() - i + t.size()) % t.size();
    if (!t.is_near(from)) incoming.push_back({from, outs[from]});
    if (!t.is_near(to)) outgoing.push_back({to, ins[to]});
  }
  PiecewiseExchange(c, std::move(incoming), std::move(outgoing), piece_bytes).await_all();
}

}  // namespace

void compare_sizes(Context& c, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs) {
  const int ranks = c.topology().size();
  std::vector<std::uint64_t> mine(ranks), theirs(ranks);
  std::vector<ConstBytes> sent;
  std::vector<Bytes> received;
  for (int rank = 0; rank < ranks; ++rank) {
    mine[rank] = ins[rank].size();
    sent.push_back(std::as_bytes(std::span(&mine[rank], 1)));
    received.push_back(std::as_writable_bytes(std::span(&theirs[rank], 1)));
  }
  alltoall(c, sent, received);
  for (int rank = 0; rank < ranks; ++rank)
    if (theirs[rank] != outs[rank].size()) fail_sizes(c, rank, theirs[rank], c.topology().rank(), outs[rank].size());
}

void alltoall(Context& c, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs) {
  const Topology& t = c.topology();
  const std::size_t block = ins[t.rank()].size();
  const std::size_t piece = exchange_piece_bytes(c.slot_bytes(), t.size());
  c.note({t.nodes() > 1 ? "pairs" : "chunks", 1, t.nodes() > 1 ? std::min(block, piece) : block});
  alltoall_on_node(c, ins, outs);
  if (t.nodes() == 1) return;
  compare_sizes_between_nodes(c, ins, outs);
  exchange_blocks(c, ins, outs, piece);
}

}  // namespace accdp
