#pragma once
#include <cstddef>
#include <vector>

#include "base/types.hpp"
#include "coll/schedule.hpp"

namespace accdp {

// What collectives cost, as pure functions of a size, a shape and a machine. The algorithms ask them which way to go,
// and plan.hpp shows the same answers. All ranks must choose alike: so the machine that decides is the same on all of
// them (constants, or measured and agreed), and nothing here rounds otherwise on another processor.

/// How a reduction goes between nodes.
enum class ReduceAlgorithm { kAuto, kDirect, kRecursiveDoubling, kRing, kPipeline, kMpi };

struct ReduceAlgorithmRow {
  ReduceAlgorithm id;
  const char* name;
  const char* meaning;
  bool is_offered;  ///< whether the automatic choice may take it
};
const std::vector<ReduceAlgorithmRow>& reduce_algorithm_rows();  ///< in the order of the enumeration
const char* name_of(ReduceAlgorithm algorithm);

/// Of allreduces between nodes: shorter ones cost more than they carry.
constexpr std::size_t kLeastFrame = 1 << 10;

/// Where the ranks of a group are, and how its shared memory is cut.
struct Shape {
  /// So many nodes that have so many ranks each.
  struct Nodes {
    int count, ranks;
  };
  /// of_all: node 0 by itself, then the others; which of these has how many ranks makes no difference.
  Shape(std::vector<Nodes> of_all, std::size_t of_slot, std::size_t of_flat);
  static Shape even(int nodes, int local_size, std::size_t of_slot, std::size_t of_flat) {
    return Shape({{1, local_size}, {nodes - 1, local_size}}, of_slot, of_flat);
  }

  int node_ranks() const { return most_local; }
  int ranks_on_node_0() const { return alike.front().ranks; }

  std::vector<Nodes> alike;
  int nodes = 0, ranks = 0;
  int local_size = 0;         ///< ranks on each node; 0 where nodes differ
  int most_local = 0;         ///< ranks on the fullest node
  int least_local = 0;        ///< on the emptiest
  bool meets_at_hub = false;  ///< meeting.hpp
  bool is_crowded = false;    ///< whether ranks of a node outnumber the cores that it has
  std::size_t slot_bytes, flat_bytes;
};

/// Alpha (seconds a message, a step) and beta (seconds a byte, here as bytes a second) of wire and node. The defaults
/// stand where nothing was measured; the link's lies between 1 and 10 Gbit/s, where a wrong guess costs least.
struct Machine {
  LinkSpeed link{0.4e9, 50e-6};
  double node_bytes_per_s = 7e9;     ///< one copy into or out of shared memory
  double step_s = 1e-6;              ///< hand-over between the ranks of a node
  double reduce_bytes_per_s = 10e9;  ///< of all sources together
  double message_s = 3e-6;           ///< processor time for each further message of several at once, at either end
};

/// What one way of doing an operation takes, from the call to the return of the last rank. Where nodes have different
/// numbers of ranks the fullest takes longest; steps and bytes are those of node 0, which has rank 0.
struct Estimate {
  double seconds = 0;
  std::size_t steps = 0;        ///< hand-overs on the node
  std::size_t wire_bytes = 0;   ///< out of the node, signatures not counted
  std::size_t chunk_bytes = 0;  ///< between nodes: of one message; on one node: of one step
  Estimate& operator+=(const Estimate& other);
};

// ---- on the nodes: among their ranks, through slots -------------------------------------------------------------
/// Room in a slot for each of k ranks: whole cache lines.
std::size_t slot_share_bytes(int k, std::size_t slot_bytes);
/// What a broadcast on a node hands over in one step, or each rank in a gather: an eighth of the message, so that some
/// read while others write, and no more than caches keep meanwhile; a slot, where there are no cores for that.
std::size_t node_piece_bytes(std::size_t bytes, std::size_t slot_bytes, bool is_crowded = false);
/// The same for a scatter, of one of k ranks' blocks.
std::size_t scatter_piece_bytes(std::size_t block, int k, std::size_t slot_bytes, bool is_crowded);
/// of_bytes: the message that they are a part of; 0: they are all of it.
Estimate node_bcast(std::size_t bytes, const Shape& shape, const Machine& machine, std::size_t of_bytes = 0);
/// Of a reduction on a node: as many slices of whole cache lines as ranks, together at most a slot.
std::size_t reduce_chunk_bytes(int k, std::size_t slot_bytes);
Estimate node_reduce(std::size_t bytes, const Shape& shape, const Machine& machine);

// ---- between nodes ----------------------------------------------------------------------------------------------
/// Each node sends so many messages at once, and gets as many.
double exchange_seconds(std::size_t messages, double bytes_each, const Machine& machine);
/// The meeting of all ranks with which every operation over nodes begins: signatures go from leader to leader, in so
/// many rounds, or to the hub and back.
constexpr std::size_t kSignatureBytes = 64;  ///< what goes along lies behind them
int meeting_rounds(const Shape& shape);
Estimate meeting(const Shape& shape, const Machine& machine);

/// Whether an operation is so short, and the nodes so few, that the data go along with the signatures: `carried` is
/// what a leader sends, `shown` what it then hands to its node.
bool goes_with_signatures(std::size_t carried, std::size_t shown, const Shape& shape);
/// The same of a broadcast.
bool bcasts_with_signatures(std::size_t bytes, const Shape& shape);
/// The same where each node gets its part, which all lie in one meeting place: of a reduce_scatter of so many bytes,
/// and of a scatter of blocks of so many.
bool reduce_scatters_with_signatures(std::size_t bytes, const Shape& shape);
bool scatters_with_signatures(std::size_t block, const Shape& shape);
/// Whether it then goes along a binomial tree; shorter ones go from root's node straight to all others, unless leaders
/// meet at the hub: it is as many messages, but not all of them root's.
bool bcasts_by_tree(std::size_t bytes, const Shape& shape);
Estimate bcast_with_signatures_estimate(std::size_t bytes, const Shape& shape, const Machine& machine);
/// The same of an allgather, of so many bytes of the fullest node, and of all.
bool allgathers_with_signatures(std::size_t node_bytes, std::size_t all_bytes, const Shape& shape);
/// Whether they then go by the hub where leaders meet there, or from each to each.
bool allgathers_at_hub(std::size_t all_bytes, const Shape& shape, const Machine& machine);
/// The same of a reduction. Ranks of a node are then added up by their leader alone.
bool reduces_with_signatures(std::size_t bytes, const Shape& shape);
/// Whether it goes by the hub without a look at other ways' costs, which do not know that the nodes' messages share
/// cores: any other way has more of them. As long as the hub's link takes the bytes in about the time of the messages.
bool goes_by_hub(std::size_t bytes, const Shape& shape, const Machine& machine);
/// From the call to the return of the last rank, but for what is computed. answered: what the hub's leader sends each,
/// where leaders meet there and all get something.
Estimate with_signatures(std::size_t carried, std::size_t shown, std::size_t answered, const Shape& shape,
                         const Machine& machine);

/// How the ranks of an alltoall cut a slot: the sizes of their blocks; room for short blocks to other nodes, which go
/// with the sizes from leader to leader; and a share for each rank of the node.
struct AlltoallCut {
  explicit AlltoallCut(const Shape& shape);

  bool by_leaders = false;       ///< else sizes go from rank to rank as well: they are too many
  bool with_signatures = false;  ///< what leaders send
  std::size_t limit = 0;         ///< longest block that is short
  std::size_t room_bytes = 0;
  /// On a node of k ranks: sizes of blocks for all ranks, or, where they are too many, for the node's.
  std::size_t table_bytes(int k) const;
  std::size_t share_bytes(int k, std::size_t slot_bytes) const {
    return slot_share_bytes(k, slot_bytes - table_bytes(k) - room_bytes);
  }

 private:
  int ranks;
};

/// What is to be reduced. Partial sums of 16-bit floats travel as float32, twice as wide.
struct Operand {
  Operand(std::size_t of_bytes, int width = 1) : bytes(of_bytes), partial_width(width) {}
  std::size_t bytes;
  int partial_width;
};
int partial_width(Datatype type);

/// Whether all ranks of each node can speak with other nodes in a reduction: they are as many on all nodes, and a slot
/// has room for a frame of each.
bool has_lanes(const Shape& shape);
/// On links that are faster than is known they gain much, on others they lose little.
bool in_doubt_all_speak(const Estimate& by_all, const Estimate& by_leaders);
/// How many ranks of each node speak with other nodes in a reduction to all: one or all.
int lanes_for(std::size_t bytes, const Shape& shape, const Machine& machine);
/// Bytes of a frame of the pipeline: a segment, one frame for each node and lane, fits into a slot, unless that made
/// the frames of leaders of many nodes too short.
std::size_t frame_bytes_for(std::size_t bytes, const Shape& shape, int lanes);

/// A reduction over several nodes from call to return, of those that can_reduce_by(). receiver_only: to rank 0 alone.
/// lanes: of the pipeline; 0: as lanes_for() says.
Estimate reduce_estimate(ReduceAlgorithm algorithm, const Operand& operand, const Shape& shape, const Machine& machine,
                         bool receiver_only = false, int lanes = 0);
/// What a rank that speaks with other nodes copies and reduces in the pipeline, beside messages.
double pipeline_work_seconds(std::size_t bytes, const Shape& shape, const Machine& machine, int lanes);
bool can_reduce_by(ReduceAlgorithm algorithm, bool receiver_only);
/// Whether the automatic choice may take it: not where kDirect and kRecursiveDoubling would hold more than a slot.
bool may_reduce_by(ReduceAlgorithm algorithm, std::size_t bytes, const Shape& shape, bool receiver_only = false);

/// How an operation was done: what the algorithm that ran says of itself.
struct Way {
  const char* algorithm = "";
  int lanes = 1;
  std::size_t chunk_bytes = 0;
};

/// The way of short operations over nodes (short_over_nodes.cpp, alltoall.cpp).
constexpr const char* kWithSignatures = "direct";

struct Choice {
  ReduceAlgorithm algorithm;
  int lanes;
};
/// For a group over several nodes: as asked for, or the cheapest of the offered algorithms. Where kMpi is asked for,
/// that is the way of what is a part of another operation.
Choice choose_allreduce(const Operand& operand, const Shape& shape, const Machine& machine,
                        ReduceAlgorithm asked = ReduceAlgorithm::kAuto);
/// Where one rank gets the result: the cheapest.
Choice choose_reduce(const Operand& operand, const Shape& shape, const Machine& machine);

}  // namespace accdp
