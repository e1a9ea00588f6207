#include "coll/plan.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/rounding.hpp"
#include "coll/bcast_stream.hpp"
#include "coll/block_costs.hpp"
#include "coll/ordered_costs.hpp"

namespace accdp {
namespace {

std::size_t at_least_one(std::size_t steps) { return std::max<std::size_t>(steps, 1); }

Plan reduction_on_node(std::size_t bytes, const Shape& shape, const Machine& m) {
  const bool flat = bytes <= shape.flat_bytes;
  const char* name = shape.ranks == 1 ? "alone" : flat ? "flat" : "slices";
  Plan plan{{name, 1, node_reduce(bytes, shape, m), ""}, {}};
  if (shape.ranks == 1) return plan;
  Shape other = shape;
  other.flat_bytes = flat ? 0 : shape.slot_bytes;
  if (flat && bytes > 0)
    plan.others.push_back({"slices", 1, node_reduce(bytes, other, m), "up to ACCDP_FLAT_BYTES: flat"});
  else if (!flat && bytes <= shape.slot_bytes)
    plan.others.push_back({"flat", 1, node_reduce(bytes, other, m), "above ACCDP_FLAT_BYTES"});
  return plan;
}

constexpr const char* kTooLong = "too long to go along with the signatures";
constexpr const char* kShort = "short enough to go along with the signatures";

constexpr const char* kInDoubt = "in doubt all ranks speak, for faster links";

/// Why all ranks of a node speak, or do not, unless the other is only slower.
const char* why_not_by(int lanes, const Shape& shape) {
  if (lanes == 1) return kInDoubt;
  return has_lanes(shape) ? "" : "too many ranks for ACCDP_CHUNK_BYTES";
}

/// Why a reduction over nodes does not go that way, unless that is only slower.
const char* why_not(const ReduceAlgorithmRow& row, int lanes, int chosen_lanes, std::size_t bytes, const Shape& shape,
                    const Machine& m, bool receiver_only, ReduceAlgorithm asked) {
  if (!can_reduce_by(row.id, receiver_only)) return "only where all get the result";
  if (asked != ReduceAlgorithm::kAuto && asked != row.id) return "ACCDP_ALLREDUCE says which";
  if (!may_reduce_by(row.id, bytes, shape, receiver_only)) return "only up to a slot: ACCDP_CHUNK_BYTES";
  if (!row.is_offered) return "for comparison";
  if (asked == ReduceAlgorithm::kAuto && goes_by_hub(bytes, shape, m))
    return "more messages, for which nodes share cores";
  if (row.id == ReduceAlgorithm::kPipeline && lanes != chosen_lanes) return why_not_by(lanes, shape);
  return "";
}

Plan reduction(const Operand& operand, const Shape& shape, const Machine& m, bool receiver_only,
               ReduceAlgorithm asked = ReduceAlgorithm::kAuto) {
  if (shape.nodes == 1) return reduction_on_node(operand.bytes, shape, m);
  const Choice choice = receiver_only ? choose_reduce(operand, shape, m) : choose_allreduce(operand, shape, m, asked);
  const int pipeline_lanes = receiver_only ? 1 : lanes_for(operand.bytes, shape, m);
  Plan plan;
  for (const ReduceAlgorithmRow& row : reduce_algorithm_rows()) {
    if (row.id == ReduceAlgorithm::kAuto || row.id == ReduceAlgorithm::kMpi) continue;
    std::vector<int> lanes{1};
    if (row.id == ReduceAlgorithm::kPipeline && shape.local_size > 1 && !receiver_only) lanes = {1, shape.local_size};
    for (int each : lanes) {
      Alternative way{row.name, each, {.seconds = -1}, ""};
      if (can_reduce_by(row.id, receiver_only))
        way.estimate = reduce_estimate(row.id, operand, shape, m, receiver_only, each);
      if (row.id == choice.algorithm && each == choice.lanes) {
        plan.chosen = way;
        continue;
      }
      way.remark = why_not(row, each, pipeline_lanes, operand.bytes, shape, m, receiver_only, asked);
      plan.others.push_back(way);
    }
  }
  return plan;
}

Alternative bcast_by(BcastAlgorithm algorithm, std::size_t bytes, std::size_t chunk, const Shape& shape,
                     const Machine& m) {
  const std::size_t frames = at_least_one(ceil_div(bytes, chunk));
  Alternative way{name_of(algorithm), 1, meeting(shape, m), ""};
  Estimate& e = way.estimate;
  e.chunk_bytes = std::min(bytes, chunk);
  if (algorithm == BcastAlgorithm::kMpi) {
    e.seconds = -1;
    e.chunk_bytes = bytes;
    return way;
  }
  // The node's part runs beside the wire but for the last frame.
  const Estimate each = node_bcast(e.chunk_bytes, shape, m, bytes);
  const double wire = bcast_seconds(algorithm, shape.nodes, frames, static_cast<double>(bytes), m.link);
  e.seconds += std::max(wire, each.seconds * static_cast<double>(frames)) + each.seconds;
  // The last frame may be short enough for fewer steps.
  e.steps += each.steps * (frames - 1) + node_bcast(bytes - (frames - 1) * chunk, shape, m, bytes).steps;
  // Every round of `nodes` frames goes as the first one.
  for (const Hop& hop : bcast_schedule(algorithm, shape.nodes, 0, std::min<std::size_t>(frames, shape.nodes))) {
    const std::size_t sent = (frames - 1 - hop.frame) / shape.nodes + 1;
    const bool has_last = (frames - 1 - hop.frame) % shape.nodes == 0;
    e.wire_bytes += hop.to.size() * (sent * chunk - (has_last ? frames * chunk - bytes : 0));
  }
  return way;
}

Plan bcast(std::size_t bytes, const Shape& shape, const Machine& m, const Asked& asked) {
  if (shape.nodes == 1) return {{shape.ranks == 1 ? "alone" : "chunks", 1, node_bcast(bytes, shape, m), ""}, {}};
  const StreamOptions options = plain_stream(asked);
  const std::size_t chunk = frame_bytes(options.chunk_bytes, shape);
  BcastAlgorithm chosen = *options.algorithm;
  if (chosen == BcastAlgorithm::kAuto)
    chosen = choose_bcast(shape.nodes, at_least_one(ceil_div(bytes, chunk)), static_cast<double>(bytes), m.link);
  Plan plan{bcast_by(chosen, bytes, chunk, shape, m), {}};
  if (options.algorithm == BcastAlgorithm::kAuto && bcasts_with_signatures(bytes, shape)) {
    plan.others.push_back(plan.chosen);
    plan.chosen = {kWithSignatures, 1, bcast_with_signatures_estimate(bytes, shape, m), ""};
  }
  for (BcastAlgorithm other : {BcastAlgorithm::kChain, BcastAlgorithm::kBinomial, BcastAlgorithm::kScatterAllgather}) {
    if (other == chosen) continue;
    plan.others.push_back(bcast_by(other, bytes, chunk, shape, m));
    if (options.algorithm != BcastAlgorithm::kAuto) plan.others.back().remark = "ACCDP_BCAST_ALGORITHM says which";
  }
  return plan;
}

/// Pieces of all ranks go round in one step: `bytes` each way of a slot, `steps` times.
Estimate rounds(std::size_t steps, double bytes_in, double bytes_out, const Machine& m) {
  return {steps * m.step_s + (bytes_in + bytes_out) / m.node_bytes_per_s, steps, 0, 0};
}

/// One way is taken, the others are told with the reason.
Plan plan_by(const std::vector<Alternative>& ways, const std::string& chosen) {
  Plan plan;
  for (const Alternative& way : ways) {
    if (way.algorithm != chosen)
      plan.others.push_back(way);
    else
      plan.chosen = {way.algorithm, way.lanes, way.estimate, ""};
  }
  return plan;
}

Plan allgather(std::size_t block, const Shape& shape, const Machine& m) {
  const std::size_t carried = block * shape.node_ranks(), all = block * shape.ranks;
  if (shape.ranks == 1) return {{"alone", 1, {}, ""}, {}};
  if (shape.nodes == 1) {
    const double bytes = static_cast<double>(block);
    Estimate e = rounds(at_least_one(ceil_div(block, shape.slot_bytes)), bytes, bytes * (shape.ranks - 1), m);
    e.chunk_bytes = std::min(block, shape.slot_bytes);
    return {{"chunks", 1, e, ""}, {}};
  }
  const bool goes_along = allgathers_with_signatures(carried, all, shape), by_likes = gathers_by_likes(all, shape, m);
  const bool at_hub = allgathers_at_hub(all, shape, m);
  Alternative along{kWithSignatures, 1, with_signatures(carried, all, at_hub ? all : 0, shape, m), kTooLong};
  along.estimate.wire_bytes = (at_hub ? all : block * shape.ranks_on_node_0()) * (shape.nodes - 1);
  along.estimate.chunk_bytes = block;
  const char* likes = shape.local_size == 1 ? "pairs" : "lanes";
  std::vector<Alternative> ways{along};
  if (shape.local_size > 0)
    ways.push_back({likes, shape.local_size, gather_by_likes(block, shape, m), goes_along ? kShort : ""});
  if (shape.local_size != 1)
    ways.push_back(
        {"leaders", 1, block_pipeline(block, shape, m, true, 1), goes_along ? kShort : why_not_by(1, shape)});
  return plan_by(ways, goes_along ? kWithSignatures : by_likes ? likes : "leaders");
}

Plan reduce_scatter(std::size_t all, const Shape& shape, const Machine& m) {
  const std::size_t block = all / shape.ranks;
  if (shape.nodes > 1) {
    const bool goes_along = reduce_scatters_with_signatures(all, shape);
    const int lanes = reduce_scatter_lanes(block * shape.ranks, shape, m);
    std::vector<Alternative> ways{{kWithSignatures, 1, reduce_scatter_along(block, shape, m), kTooLong}};
    if (shape.local_size > 1)
      ways.push_back({"lanes", shape.local_size, block_pipeline(block, shape, m, false, shape.local_size),
                      goes_along ? kShort : why_not_by(shape.local_size, shape)});
    ways.push_back(
        {"leaders", 1, block_pipeline(block, shape, m, false, 1), goes_along ? kShort : why_not_by(1, shape)});
    return plan_by(ways, goes_along ? kWithSignatures : lanes > 1 ? "lanes" : "leaders");
  }
  const int k = shape.ranks;
  const std::size_t share = slot_share_bytes(k, shape.slot_bytes);
  const double bytes = static_cast<double>(block);
  Estimate e = rounds(at_least_one(ceil_div(block, share)), bytes * (k - 1), 0, m);
  e.seconds += bytes * k / m.reduce_bytes_per_s;
  e.chunk_bytes = std::min(block, share);
  return {{"slices", 1, e, ""}, {}};
}

Plan alltoall(std::size_t all, const Shape& shape, const Machine& m) {
  const std::size_t block = all / shape.ranks;
  const AlltoallCut cut(shape);
  if (shape.nodes == 1) return {{"chunks", 1, alltoall_on_nodes(block, cut, shape, m) += {0, 0, 0, block}, ""}, {}};
  const auto way = [&](const char* name, bool along, const char* remark) -> Alternative {
    return {name, 1, alltoall_estimate(block, along, cut, shape, m), remark};
  };
  const bool is_short = cut.by_leaders && block <= cut.limit;
  const char* along = cut.with_signatures ? kWithSignatures : "leaders";
  std::vector<Alternative> ways{way("pairs", false, "short enough for the leaders' messages")};
  if (cut.by_leaders) ways.push_back(way(along, true, "too long for the leaders' messages"));
  return plan_by(ways, is_short ? along : "pairs");
}

Plan gather(std::size_t block, const Shape& shape, const Machine& m) {
  if (shape.ranks == 1) return {{"alone", 1, {}, ""}, {}};
  if (shape.nodes == 1) return {{"chunks", 1, gather_by_pairs(block, shape, m), ""}, {}};
  const bool along = goes_with_signatures(block * shape.node_ranks(), block * shape.ranks, shape);
  return plan_by({{kWithSignatures, 1, gather_along(block, shape, m), kTooLong},
                  {"pairs", 1, gather_by_pairs(block, shape, m), kShort}},
                 along ? kWithSignatures : "pairs");
}

Plan scatter(std::size_t block, const Shape& shape, const Machine& m) {
  if (shape.ranks == 1) return {{"alone", 1, {}, ""}, {}};
  if (shape.nodes == 1) return {{"chunks", 1, scatter_by_pairs(block, shape, m), ""}, {}};
  return plan_by({{kWithSignatures, 1, scatter_along(block, shape, m), kTooLong},
                  {"pairs", 1, scatter_by_pairs(block, shape, m), kShort}},
                 scatters_with_signatures(block, shape) ? kWithSignatures : "pairs");
}

/// The MPI library's own, of which there is no model.
void go_by_mpi(Plan& plan, const char* why) {
  const std::string mpi = name_of(BcastAlgorithm::kMpi);
  if (plan.chosen.algorithm == mpi) return;
  plan.chosen.remark = why;
  plan.others.insert(plan.others.begin(), plan.chosen);
  plan.chosen = {mpi, 1, {.seconds = -1}, ""};
}

Plan own_plan(OpKind op, const Operand& operand, const Shape& shape, const Machine& machine, const Asked& asked) {
  const std::size_t bytes = operand.bytes;
  switch (op) {
    case OpKind::kAllreduce: return reduction(operand, shape, machine, false, asked.allreduce);
    case OpKind::kReduce: return reduction(operand, shape, machine, true);
    case OpKind::kBcast: return bcast(bytes, shape, machine, asked);
    case OpKind::kAllgather: return allgather(bytes, shape, machine);
    case OpKind::kReduceScatter: return reduce_scatter(bytes, shape, machine);
    case OpKind::kAlltoall: return alltoall(bytes, shape, machine);
    case OpKind::kGather: return gather(bytes, shape, machine);
    case OpKind::kScatter: return scatter(bytes, shape, machine);
    default: throw UsageError(std::string("op=") + name_of(op) + ": there is no plan of it");
  }
}

bool is_reduction(OpKind op) {
  return op == OpKind::kAllreduce || op == OpKind::kReduce || op == OpKind::kReduceScatter;
}

/// The one way in which the placement of ranks makes no difference, in place of those that were planned.
Plan in_rank_order(OpKind op, std::size_t bytes, const Shape& shape, const Machine& m, const Plan& otherwise) {
  const Estimate estimate = op == OpKind::kReduceScatter
                                ? ordered_reduce_scatter_estimate(bytes / shape.ranks, shape, m)
                                : ordered_reduce_estimate(bytes, shape, m, op == OpKind::kReduce);
  Plan plan{{kRankOrder, 1, estimate, ""}, {otherwise.chosen}};
  plan.others.insert(plan.others.end(), otherwise.others.begin(), otherwise.others.end());
  for (Alternative& way : plan.others) way.remark = "sums by node first: not deterministic";
  return plan;
}

}  // namespace

const std::vector<OpKind>& planned_ops() {
  static const std::vector<OpKind> ops = {OpKind::kAllreduce, OpKind::kReduce,        OpKind::kBcast,
                                          OpKind::kAllgather, OpKind::kReduceScatter, OpKind::kAlltoall,
                                          OpKind::kGather,    OpKind::kScatter};
  return ops;
}

Plan plan_of(OpKind op, const Operand& operand, const Shape& shape, const Machine& machine, const Asked& asked) {
  const bool is_ordered = asked.in_rank_order && is_reduction(op);
  Asked own = asked;
  if (is_ordered) own.allreduce = ReduceAlgorithm::kAuto;  // nor is MPI asked
  Plan plan = own_plan(op, operand, shape, machine, own);
  for (Alternative& way : plan.others)
    if (way.remark == kInDoubt && way.estimate.seconds >= plan.chosen.estimate.seconds) way.remark = "";
  if (is_ordered) return shape.nodes == 1 ? plan : in_rank_order(op, operand.bytes, shape, machine, plan);
  if (shape.ranks == 1 || op == OpKind::kGather || op == OpKind::kScatter) return plan;  // MPI is not asked for those
  if (asked.by_mpi)
    go_by_mpi(plan, "ACCDP_BASELINE says mpi");
  else if (op == OpKind::kAllreduce && asked.allreduce == ReduceAlgorithm::kMpi)
    go_by_mpi(plan, "ACCDP_ALLREDUCE says mpi");
  return plan;
}

}  // namespace accdp
