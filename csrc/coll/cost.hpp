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

/// Where the ranks of a group are, and how its shared memory is cut.
struct Shape {
  int nodes = 1;
  int local_size = 1;  ///< ranks on each node; 0 where nodes differ
  int ranks = 1;
  std::size_t slot_bytes = 1 << 20, flat_bytes = 16 << 10;
  int most_local = 0;  ///< ranks on the fullest node; 0: local_size

  int node_ranks() const { return most_local ? most_local : local_size; }
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

/// What one way of doing an operation takes, from the call to the return of the last rank.
struct Estimate {
  double seconds = 0;
  std::size_t steps = 0;        ///< hand-overs on a node
  std::size_t wire_bytes = 0;   ///< out of node 0, signatures not counted
  std::size_t chunk_bytes = 0;  ///< between nodes: of one message; on one node: of one step
  Estimate& operator+=(const Estimate& other);
};

// ---- on a node: k ranks, through slots --------------------------------------------------------------------------
/// What a broadcast on a node hands over in one step: a slot of a long message; of one of few slots an eighth, so that
/// ranks read while the source writes.
std::size_t node_piece_bytes(std::size_t bytes, std::size_t slot_bytes);
Estimate node_bcast(std::size_t bytes, int k, const Shape& shape, const Machine& machine);
/// Of a reduction on a node: as many slices of whole cache lines as ranks, together at most a slot.
std::size_t reduce_chunk_bytes(int k, std::size_t slot_bytes);
Estimate node_reduce(std::size_t bytes, int k, const Shape& shape, const Machine& machine);

// ---- between nodes ----------------------------------------------------------------------------------------------
/// Each node sends so many messages at once, and gets as many.
double exchange_seconds(std::size_t messages, double bytes_each, const Machine& machine);
/// The meeting of all ranks with which every operation over nodes begins: signatures go from leader to leader, in so
/// many rounds; in each, every leader sends one and gets one.
constexpr std::size_t kSignatureBytes = 48;
int meeting_rounds(int nodes);
Estimate meeting(const Shape& shape, const Machine& machine);

/// Whether an operation is so short, and the nodes so few, that the data go along with the signatures: `carried` is
/// what a leader sends, `shown` what it then hands to its node.
bool goes_with_signatures(std::size_t carried, std::size_t shown, const Shape& shape);
/// The same of a broadcast, whose root's node sends to all others by itself.
bool bcasts_with_signatures(std::size_t bytes, const Shape& shape);
/// The same of a reduction. Ranks of a node are then added up by their leader alone.
bool reduces_with_signatures(std::size_t bytes, const Shape& shape);
/// From the call to the return of the last rank, but for what is computed.
Estimate with_signatures(std::size_t carried, std::size_t shown, const Shape& shape, const Machine& machine);

/// What is to be reduced. Partial sums of 16-bit floats travel as float32, twice as wide.
struct Operand {
  Operand(std::size_t of_bytes, int width = 1) : bytes(of_bytes), partial_width(width) {}
  std::size_t bytes;
  int partial_width;
};
int partial_width(Datatype type);

/// How many ranks of each node speak with other nodes in a reduction to all: one or all.
int lanes_for(std::size_t bytes, const Shape& shape);
/// Bytes of a frame of the pipeline: a segment, one frame for each node and lane, fits into a slot, unless that made
/// the frames of many nodes too short.
std::size_t frame_bytes_for(std::size_t bytes, const Shape& shape, int lanes);

/// A reduction over several nodes from call to return. Not for kAuto and kMpi. receiver_only: to one node's leader.
/// lanes: of the pipeline; 0: as lanes_for() says.
Estimate reduce_estimate(ReduceAlgorithm algorithm, const Operand& operand, const Shape& shape, const Machine& machine,
                         bool receiver_only = false, int lanes = 0);
/// What a rank that speaks with other nodes copies and reduces in the pipeline, beside messages.
double pipeline_work_seconds(std::size_t bytes, const Shape& shape, const Machine& machine, int lanes);
/// Whether it can be done that way: kDirect and kRecursiveDoubling hold all of it in memory.
bool may_reduce_by(ReduceAlgorithm algorithm, std::size_t bytes, const Shape& shape, bool receiver_only = false);

/// How an operation was done: what the algorithm that ran says of itself.
struct Way {
  const char* algorithm = "";
  int lanes = 1;
  std::size_t chunk_bytes = 0;
};

/// The way of a short bcast or allgather over nodes (short_over_nodes.cpp).
constexpr const char* kWithSignatures = "direct";

struct Choice {
  ReduceAlgorithm algorithm;
  int lanes;
  std::size_t frame_bytes;  ///< of one message
  double seconds;
};
/// The cheapest of the offered algorithms for a group over several nodes.
Choice choose_allreduce(const Operand& operand, const Shape& shape, const Machine& machine);
/// The same where one rank gets the result.
Choice choose_reduce(const Operand& operand, const Shape& shape, const Machine& machine);

}  // namespace accdp
