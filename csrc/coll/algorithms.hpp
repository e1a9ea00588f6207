#pragma once
#include <vector>

#include "coll/context.hpp"
#include "coll/cost.hpp"
#include "coll/wire_reduction.hpp"

namespace accdp {

// The collectives. All ranks of the group call the same one with the same signature; each file tells
// its phases and its cost in steps (one hand-over between ranks of a node) and bytes on the wire.

void barrier(Context& context);
void bcast(Context& context, Bytes data, int root);
/// `out` may be `in`. receiver: the one rank that gets the result, -1 for all.
void reduce_to(Context& context, ConstBytes in, Bytes out, const Reduction& how, int receiver);
/// Numbers that no caller sees become the sum, or what `op` is, of all ranks' ones.
void agree_on(Context& context, std::span<double> numbers, ReduceOp op);
/// outs[r] is rank r's block; sizes may differ between ranks.
void allgather(Context& context, ConstBytes in, const std::vector<Bytes>& outs);
void reduce_scatter(Context& context, const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how);
/// As reduce_to and reduce_scatter, with the same bits for every placement of the ranks.
void reduce_in_rank_order(Context& context, ConstBytes in, Bytes out, const Reduction& how, int receiver);
void reduce_scatter_in_rank_order(Context& context, const std::vector<ConstBytes>& ins, Bytes out,
                                  const Reduction& how);
void gather(Context& context, ConstBytes in, const std::vector<Bytes>& outs, int root);
void scatter(Context& context, const std::vector<ConstBytes>& ins, Bytes out, int root);
void alltoall(Context& context, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs);
/// What alltoall does before it moves anything: fails where a rank sends another number of bytes than is expected.
void compare_sizes(Context& context, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs);

// Parts that several of them use.

/// Copies unless both are the same memory.
void copy(Bytes to, ConstBytes from);
bool overlap(ConstBytes a, ConstBytes b);
/// Operations over few nodes whose data go along with the signatures (cost.hpp says which).
void reduce_with_signatures(Context& context, ConstBytes in, Bytes out, const Reduction& how, int receiver);
void bcast_with_signatures(Context& context, Bytes data, int root);
void bcast_with_signatures(Context& context, const std::vector<Bytes>& pieces, int root);  ///< all in one
void reduce_scatter_with_signatures(Context& context, const std::vector<ConstBytes>& ins, Bytes out,
                                    const Reduction& how);
void scatter_with_signatures(Context& context, const std::vector<ConstBytes>& ins, Bytes out, int root);
void gather_with_signatures(Context& context, ConstBytes in, const std::vector<Bytes>& outs, int root);
/// Of the blocks of a node's ranks.
std::size_t bytes_of_node(const Topology& topology, int node, const std::vector<Bytes>& blocks);
void allgather_with_signatures(Context& context, ConstBytes in, const std::vector<Bytes>& outs);
/// Hands the bytes of `spans`, one after the other, from one rank of the node to the others. of_bytes: the message that
/// they are a part of; 0: they are all of it.
void bcast_on_node(Context& context, std::span<const Bytes> spans, int source_local_rank, std::size_t of_bytes = 0);
inline void bcast_on_node(Context& context, Bytes data, int source_local_rank, std::size_t of_bytes = 0) {
  bcast_on_node(context, std::span<const Bytes>(&data, 1), source_local_rank, of_bytes);
}
/// Reduces over the ranks of the node; receiver: local rank, or -1 for all. Divides if `how` says so.
void reduce_on_node(Context& context, ConstBytes in, Bytes out, const Reduction& how, int receiver);
/// Reduces over the leaders of all nodes, called by them only, messages of at most `most_bytes` one after the other.
/// Memory for it is taken once. algorithm: direct, recursive_doubling or ring.
class LeaderReduction {
 public:
  LeaderReduction(Context& context, const Reduction& how, ReduceAlgorithm algorithm, std::size_t most_bytes);
  /// `data`: the node's sum, then the result. receiver: the node that gets it, -1 for all; one node only by direct.
  void run(Bytes data, int receiver = -1);

 private:
  Context& c_;
  const Reduction how_;
  const ReduceAlgorithm algorithm_;
  Bytes room_, wide_;
};
/// Reduces a long message over several nodes; receiver: group rank, or -1 for all. lanes: as chosen in cost.hpp.
void reduce_over_nodes(Context& context, ConstBytes in, Bytes out, const Reduction& how, int receiver, int lanes);
/// The same with the frames given, and what they look like on the wire. Several lanes: only where all get the result.
void reduce_frames(Context& context, ConstBytes in, Bytes out, const Reduction& how, int receiver,
                   const FrameGrid& grid, FrameCodec* codec);
/// What of it happens between nodes, for all to get the result: of `data` this rank has the node's sums in its lane of
/// each segment, which become the sums over all nodes, at the workplace.
void reduce_frames_between_nodes(Context& context, Bytes data, const Reduction& how, const FrameGrid& grid,
                                 FrameCodec* codec, WireReduction::Workplace& workplace);

}  // namespace accdp
