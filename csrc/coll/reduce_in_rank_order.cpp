// Reductions with the same bits wherever the ranks are: each element is reduced by one rank, over the contributions of
// all ranks in the order of their numbers, as on one node. Contributions therefore travel as they are: no sum of a node
// stands for its ranks. Segments; in each:
//   1. all-to-all: every rank sends every other the slice of which that one is the owner, and reduces its own;
//   2. the results go to all (allgather), or to the receiver (all-to-all with one reader).
// Cost: k*S*(nodes-1)/nodes + S*(nodes-1)/nodes bytes out of a node of k ranks, instead of 2*S*(nodes-1)/nodes.
#include <algorithm>

#include "coll/algorithms.hpp"
#include "coll/ordered_costs.hpp"

namespace accdp {
namespace {

/// Slice `rank` of a segment of so many bytes: where it begins, and its end.
std::pair<std::size_t, std::size_t> range_of(std::size_t bytes, int rank, int ranks) {
  const std::size_t each = ordered_slice_bytes(bytes, ranks);
  return {std::min(bytes, rank * each), std::min(bytes, (rank + 1) * each)};
}

/// slice: the longest of what ranks send each other in the first segment.
void note(Context& c, std::size_t slice) { c.note({kRankOrder, 1, ordered_message_bytes(slice, c.shape())}); }

/// All-to-all of `ins`, whose part for this rank is as long everywhere as `result`, and reduces what came.
void exchange_and_reduce(Context& c, const std::vector<ConstBytes>& ins, Bytes room, Bytes result,
                         const Reduction& how) {
  std::vector<Bytes> outs;
  std::vector<const void*> sources;
  for (int rank = 0; rank < c.topology().size(); ++rank) {
    outs.push_back(room.subspan(rank * result.size(), result.size()));
    sources.push_back(outs.back().data());
  }
  alltoall(c, ins, outs);
  reduce(result.data(), sources, result.size() / element_bytes(how.type), how);
}

}  // namespace

void reduce_in_rank_order(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) {
  const int ranks = c.topology().size(), me = c.topology().rank();
  if (c.topology().nodes() == 1) return reduce_to(c, in, out, how, receiver);
  c.meet();
  const std::size_t longest = ordered_slice_bytes(std::min(in.size(), kOrderedSegment), ranks);
  note(c, longest);
  const Bytes room = c.scratch(ranks * longest);
  const Bytes sums = receiver < 0 ? Bytes() : c.scratch(longest);
  for (std::size_t at = 0; at < in.size(); at += kOrderedSegment) {
    const std::size_t bytes = std::min(kOrderedSegment, in.size() - at);
    std::vector<ConstBytes> ins;
    std::vector<Bytes> results;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto [begin, end] = range_of(bytes, rank, ranks);
      ins.push_back(in.subspan(at + begin, end - begin));
      results.push_back(out.empty() ? Bytes() : out.subspan(at + begin, end - begin));
    }
    const Bytes mine = receiver < 0 ? results[me] : sums.first(ins[me].size());
    exchange_and_reduce(c, ins, room, mine, how);
    if (receiver < 0) {
      allgather(c, mine, results);
      continue;
    }
    std::vector<ConstBytes> parcels(ranks);
    parcels[receiver] = mine;
    if (me != receiver) results.assign(ranks, {});
    alltoall(c, parcels, results);
  }
}

void reduce_scatter_in_rank_order(Context& c, const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how) {
  if (c.topology().nodes() == 1) return reduce_scatter(c, ins, out, how);
  c.meet();
  const std::size_t most = ordered_piece_bytes(c.topology().size());
  const Bytes room = c.scratch(ins.size() * std::min(out.size(), most));
  std::size_t longest = 0;
  for (const ConstBytes& block : ins) longest = std::max(longest, block.size());
  note(c, std::min(longest, most));
  for (std::size_t at = 0; at < longest; at += most) {
    auto piece = [&](auto block) {
      const std::size_t begin = std::min(at, block.size());
      return block.subspan(begin, std::min(most, block.size() - begin));
    };
    std::vector<ConstBytes> pieces;
    for (const ConstBytes& block : ins) pieces.push_back(piece(block));
    exchange_and_reduce(c, pieces, room, piece(out), how);
  }
}

}  // namespace accdp
