#pragma once
#include "coll/cost.hpp"

namespace accdp {

// What operations over several nodes cost in which each rank has a block for, or of, every other: blocks of one size,
// as in cost.hpp from call to return. Where their sizes differ, ways are chosen for as many of the mean.

/// allgather by leaders (gathers), or reduce_scatter by leaders or all ranks.
Estimate block_pipeline(std::size_t block, const Shape& shape, const Machine& machine, bool gathers, int lanes);
/// allgather, every rank with its like on the other nodes: while the wire carries pieces the node hands round others,
/// but for the last one. Ranks alone on their nodes hand nothing round.
Estimate gather_by_likes(std::size_t block, const Shape& shape, const Machine& machine);
/// reduce_scatter, each leader sends each other its part along with its signature.
Estimate reduce_scatter_along(std::size_t block, const Shape& shape, const Machine& machine);
/// What an alltoall does on a node, of one or several.
Estimate alltoall_on_nodes(std::size_t block, const AlltoallCut& cut, const Shape& shape, const Machine& machine);
/// All of one over several nodes: blocks to other nodes go along with their sizes, or from rank to rank after them.
Estimate alltoall_estimate(std::size_t block, bool along, const AlltoallCut& cut, const Shape& shape,
                           const Machine& machine);

/// gather and scatter to and from rank 0: blocks of a node along with its leader's signature, or from rank to rank, and
/// on rank 0's node by slots meanwhile.
Estimate gather_along(std::size_t block, const Shape& shape, const Machine& machine);
Estimate scatter_along(std::size_t block, const Shape& shape, const Machine& machine);
Estimate gather_by_pairs(std::size_t block, const Shape& shape, const Machine& machine);
Estimate scatter_by_pairs(std::size_t block, const Shape& shape, const Machine& machine);

/// Whether in an allgather of so many bytes together all ranks speak, each with its like on the other nodes.
bool gathers_by_likes(std::size_t total_bytes, const Shape& shape, const Machine& machine);
/// How many ranks of each node speak in a reduce_scatter of so many bytes together.
int reduce_scatter_lanes(std::size_t total_bytes, const Shape& shape, const Machine& machine);

}  // namespace accdp
