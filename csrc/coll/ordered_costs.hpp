#pragma once
#include "coll/cost.hpp"

namespace accdp {

// Reductions in rank order over several nodes (reduce_in_rank_order.cpp): how they cut messages, and what that costs,
// as in cost.hpp from call to return.

constexpr const char* kRankOrder = "rank_order";  ///< the one way there is, as Way names it
constexpr std::size_t kOrderedSegment = 4 << 20;

/// Of so many bytes, what each rank reduces: lines, of which the last rank, or some, may have less.
std::size_t ordered_slice_bytes(std::size_t bytes, int ranks);
/// What a segment of a reduce_scatter has of each block, at most.
std::size_t ordered_piece_bytes(int ranks);
/// Longest message between nodes, where every rank sends each other `slice`.
std::size_t ordered_message_bytes(std::size_t slice, const Shape& shape);

/// receiver_only: to rank 0 alone. Bytes on the wire are those of ranks that are numbered node by node.
Estimate ordered_reduce_estimate(std::size_t bytes, const Shape& shape, const Machine& machine, bool receiver_only);
Estimate ordered_reduce_scatter_estimate(std::size_t block, const Shape& shape, const Machine& machine);

}  // namespace accdp
