#include "coll/plan.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "coll/bcast_stream.hpp"
#include "coll/block_frames.hpp"
#include "coll/piecewise_exchange.hpp"

namespace accdp {
namespace {

std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }
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

/// Why a reduction over nodes does not go that way, unless that is only slower.
const char* why_not(const ReduceAlgorithmRow& row, int lanes, std::size_t bytes, const Shape& shape, bool receiver_only,
                    ReduceAlgorithm asked) {
  if (!can_reduce_by(row.id, receiver_only)) return "only where all get the result";
  if (asked != ReduceAlgorithm::kAuto && asked != row.id) return "ACCDP_ALLREDUCE says which";
  if (!may_reduce_by(row.id, bytes, shape, receiver_only)) return "only up to a slot: ACCDP_CHUNK_BYTES";
  if (!row.is_offered) return "for comparison";
  if (asked == ReduceAlgorithm::kAuto && goes_by_hub(bytes, shape)) return "more messages, for which nodes share cores";
  if (row.id == ReduceAlgorithm::kPipeline && lanes != lanes_for(bytes, shape))
    return lanes == 1 ? "leaders: below a quarter of ACCDP_CHUNK_BYTES"
                      : "lanes: from a quarter of ACCDP_CHUNK_BYTES, on few nodes";
  return "";
}

Plan reduction(const Operand& operand, const Shape& shape, const Machine& m, bool receiver_only,
               ReduceAlgorithm asked = ReduceAlgorithm::kAuto) {
  if (shape.nodes == 1) return reduction_on_node(operand.bytes, shape, m);
  const Choice choice = receiver_only ? choose_reduce(operand, shape, m) : choose_allreduce(operand, shape, m, asked);
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
      way.remark = why_not(row, each, operand.bytes, shape, receiver_only, asked);
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

Plan bcast(std::size_t bytes, const Shape& shape, const Machine& m) {
  if (shape.nodes == 1) return {{shape.ranks == 1 ? "alone" : "chunks", 1, node_bcast(bytes, shape, m), ""}, {}};
  const StreamOptions options = plain_stream();
  const std::size_t chunk = std::min(options.chunk_bytes, frame_limit(shape.slot_bytes));
  BcastAlgorithm chosen = options.algorithm;
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

/// Nodes whose blocks have the same length together, as BlockFrames cuts them.
struct Streams {
  std::size_t nodes, bytes, frame_bytes;

  /// What the segments before that one have of each.
  std::size_t before(std::size_t segment, int lanes) const { return std::min(bytes, segment * lanes * frame_bytes); }
  std::size_t of(std::size_t segment, int lanes) const { return before(segment + 1, lanes) - before(segment, lanes); }
};

/// allgather (gathers, by leaders) or reduce_scatter over nodes. Segments between those in which a stream ends are
/// alike: so they are counted, not gone through.
Alternative block_pipeline(std::size_t block, const Shape& shape, const Machine& m, bool gathers, int lanes) {
  const int n = shape.nodes, k = shape.node_ranks();
  const std::size_t total = block * shape.ranks, ranks_here = shape.ranks_on_node_0();
  const BlockCut cut(shape, lanes);
  std::vector<Streams> streams;  // the first one: node 0's
  for (const auto& [nodes, ranks] : shape.alike)
    streams.push_back(
        {std::size_t(nodes), block * ranks, stream_frame_bytes(block * ranks, total, cut.segment_bytes, n, lanes)});
  std::size_t segments = 0, largest = 0;
  std::vector<std::size_t> marks{0, 1};  // segments from which on others are unlike those before
  for (const Streams& s : streams) {
    const std::size_t whole = s.bytes / (lanes * s.frame_bytes);
    segments = std::max(segments, ceil_div(s.bytes, lanes * s.frame_bytes));
    largest = std::max(largest, std::min(s.bytes, s.frame_bytes));
    marks.insert(marks.end(), {whole, whole + 1});
  }
  std::sort(marks.begin(), marks.end());
  marks.push_back(segments);

  Estimate e = meeting(shape, m);
  if (lanes > 1) e += {m.step_s, 1, 0, 0};
  for (std::size_t i = 0; i + 1 < marks.size(); ++i) {
    const std::size_t first = marks[i], count = std::min(marks[i + 1], segments) - std::min(first, segments);
    if (count == 0) continue;
    std::size_t segment = 0;
    const Streams* fullest = &streams[0];
    for (const Streams& s : streams) {
      segment += s.nodes * s.of(first, lanes);
      if (s.of(first, lanes) > fullest->of(first, lanes)) fullest = &s;
    }
    const auto steps_of = [&](const Streams& s) {
      const std::size_t own = s.of(first, lanes), shown = gathers ? own : std::min(own, s.frame_bytes);
      return ceil_div(segment, shape.slot_bytes) + ceil_div(shown, shape.slot_bytes);
    };
    if (ranks_here > 1) e.steps += steps_of(streams[0]) * count;
    const double all = static_cast<double>(segment), most = static_cast<double>(fullest->of(first, lanes));
    // The fullest node sends so many of an allgather, and gets so many of a reduce_scatter.
    const double link_s = most * (n - 1) / m.link.bytes_per_s;
    const double own_s = (k > 1 ? static_cast<double>(steps_of(*fullest)) * m.step_s : 0) +
                         2 * (all + most) / m.node_bytes_per_s + 2 * (n - 2) * m.message_s +
                         (gathers ? 0 : (all * k / lanes + most * n) / m.reduce_bytes_per_s);
    // Of the first one nothing overlaps.
    const double alone = first == 0 ? m.link.latency_s + link_s + own_s : 0;
    e.seconds += alone + static_cast<double>(first == 0 ? count - 1 : count) * std::max(link_s, own_s);
  }
  e.wire_bytes = block * (gathers ? ranks_here * (n - 1) : shape.ranks - ranks_here);
  e.chunk_bytes = largest;
  return {lanes > 1 ? "lanes" : "leaders", lanes, e, ""};
}

/// Every rank with its like on the other nodes; while the wire carries pieces the node hands round others, but for the
/// last one. Ranks alone on their nodes hand nothing round.
Alternative gather_by_likes(std::size_t block, const Shape& shape, const Machine& m) {
  const int n = shape.nodes, k = shape.local_size;
  const std::size_t most = exchange_piece_bytes(shape.slot_bytes, n - 1), piece = std::min(block, most);
  const auto shown = [&](std::size_t steps, double bytes) -> Estimate {  // put into a slot, and taken from k - 1
    if (k == 1) return {};
    return {static_cast<double>(steps) * m.step_s + k * bytes / m.node_bytes_per_s, steps, 0, 0};
  };
  const double bytes = static_cast<double>(block);
  const Estimate all = shown(n * ceil_div(block, most), n * bytes), last = shown(1, static_cast<double>(piece));
  Estimate e = meeting(shape, m);
  if (k > 1) e += {m.step_s, 1, 0, 0};  // all meet again, since not only leaders send
  e.seconds += bytes / m.node_bytes_per_s;
  e.seconds += std::max(all.seconds, exchange_seconds(n - 1, k * bytes, m) + last.seconds);
  e.steps += all.steps;
  e.wire_bytes = block * k * (n - 1);
  e.chunk_bytes = piece;
  return {k == 1 ? "pairs" : "lanes", k, e, ""};
}

constexpr const char* kTooLong = "too long to go along with the signatures";
constexpr const char* kShort = "short enough to go along with the signatures";
constexpr const char* kNoLanes = "less than a quarter of ACCDP_CHUNK_BYTES, or too many nodes";
constexpr const char* kLanes = "long enough for all ranks to speak";

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
  const bool goes_along = allgathers_with_signatures(carried, all, shape), by_likes = gathers_by_likes(all, shape);
  Alternative along{kWithSignatures, 1, with_signatures(carried, all, all, shape, m), kTooLong};
  along.estimate.wire_bytes = (shape.meets_at_hub ? all : block * shape.ranks_on_node_0()) * (shape.nodes - 1);
  along.estimate.chunk_bytes = block;
  std::vector<Alternative> ways{along};
  if (shape.local_size > 0) {
    ways.push_back(gather_by_likes(block, shape, m));
    ways.back().remark = goes_along ? kShort : kNoLanes;
  }
  if (shape.local_size != 1) {
    ways.push_back(block_pipeline(block, shape, m, true, 1));
    ways.back().remark = goes_along ? kShort : kLanes;
  }
  return plan_by(ways, goes_along ? kWithSignatures : by_likes ? shape.local_size == 1 ? "pairs" : "lanes" : "leaders");
}

/// Every leader sends every other a part of so many bytes with its signature, never by the hub.
Estimate parts_with_signatures(double part, const Shape& shape, const Machine& m) {
  return {m.step_s + exchange_seconds(shape.nodes - 1, kSignatureBytes + part, m), 1, 0, 0};
}

/// What the leader has is shown to its node, unless that is the leader.
Estimate shown(const Shape& shape, const Machine& m) {
  if (shape.node_ranks() == 1) return {};
  return {m.step_s, shape.ranks_on_node_0() > 1 ? std::size_t{1} : 0, 0, 0};
}

/// Every node gets its part of what the others have, with their signatures.
Alternative reduce_scatter_along(std::size_t block, const Shape& shape, const Machine& m) {
  const double all = static_cast<double>(block) * shape.ranks, part = static_cast<double>(block) * shape.node_ranks();
  const int n = shape.nodes, k = shape.node_ranks();
  Estimate e = parts_with_signatures(part, shape, m) += shown(shape, m);
  e.seconds += (k > 1 ? 2 * all + 2 * part : all) / m.node_bytes_per_s + (k * all + n * part) / m.reduce_bytes_per_s;
  e.wire_bytes = block * (shape.ranks - shape.ranks_on_node_0());
  e.chunk_bytes = block;
  return {kWithSignatures, 1, e, kTooLong};
}

Plan reduce_scatter(std::size_t all, const Shape& shape, const Machine& m) {
  const std::size_t block = all / shape.ranks;
  if (shape.nodes > 1) {
    const bool goes_along = reduce_scatters_with_signatures(all, shape);
    const bool by_lanes = lanes_for(block * shape.ranks, shape) > 1;
    std::vector<Alternative> ways{reduce_scatter_along(block, shape, m)};
    if (shape.local_size > 1) {
      ways.push_back(block_pipeline(block, shape, m, false, shape.local_size));
      ways.back().remark = goes_along ? kShort : kNoLanes;
    }
    ways.push_back(block_pipeline(block, shape, m, false, 1));
    ways.back().remark = goes_along ? kShort : kLanes;
    return plan_by(ways, goes_along ? kWithSignatures : by_lanes ? "lanes" : "leaders");
  }
  const int k = shape.ranks;
  const std::size_t share = slot_share_bytes(k, shape.slot_bytes);
  const double bytes = static_cast<double>(block);
  Estimate e = rounds(at_least_one(ceil_div(block, share)), bytes * (k - 1), 0, m);
  e.seconds += bytes * k / m.reduce_bytes_per_s;
  e.chunk_bytes = std::min(block, share);
  return {{"slices", 1, e, ""}, {}};
}

/// Between nodes: the blocks along with their sizes, by leaders, or from rank to rank after them.
Estimate alltoall_over_nodes(std::size_t block, bool along, const AlltoallCut& cut, const Shape& shape,
                             const Machine& m) {
  constexpr std::size_t kSize = sizeof(std::uint64_t);
  const std::size_t n = shape.nodes, k = shape.node_ranks(), others = shape.ranks - k;
  const std::size_t here = shape.ranks_on_node_0(), letters = here * (shape.ranks - here);
  const double carried = static_cast<double>(k * k * (kSize + (along ? block : 0)));
  Estimate e = cut.with_signatures ? parts_with_signatures(carried, shape, m) : meeting(shape, m);
  if (cut.by_leaders) {
    if (!cut.with_signatures) e.seconds += exchange_seconds(n - 1, carried, m);
    // Into the slot, out of it into the letter; that once more, and out of the slot that is shown.
    e.seconds += (k > 1 ? 5 : 2) * carried * static_cast<double>(n - 1) / m.node_bytes_per_s;
    e += shown(shape, m);
  } else {
    e += {m.step_s + exchange_seconds(others, static_cast<double>(kSize * k), m), 1, 0, 0};
  }
  if (!along) e.seconds += exchange_seconds(others, static_cast<double>(block * k), m);
  e.wire_bytes = letters * (block + kSize);
  e.chunk_bytes = std::min(block, along ? block : exchange_piece_bytes(shape.slot_bytes, shape.ranks));
  return e;
}

Plan alltoall(std::size_t all, const Shape& shape, const Machine& m) {
  const std::size_t block = all / shape.ranks;
  const double bytes = static_cast<double>(block);
  const AlltoallCut cut(shape);
  const auto among = [&](int k) {
    const std::size_t steps = k == 1 ? 1 : at_least_one(ceil_div(block, cut.share_bytes(k)));
    return rounds(steps, bytes * (k - 1), bytes * (k - 1), m);
  };
  Estimate on_node = among(shape.node_ranks());
  on_node.steps = among(shape.ranks_on_node_0()).steps;
  if (shape.nodes == 1) return {{"chunks", 1, on_node += {0, 0, 0, block}, ""}, {}};
  const auto way = [&](const char* name, bool along, const char* remark) -> Alternative {
    Estimate e = alltoall_over_nodes(block, along, cut, shape, m);
    e.seconds += on_node.seconds;
    e.steps += on_node.steps - 1;  // the first step is that of the meeting
    return {name, 1, e, remark};
  };
  const bool is_short = cut.by_leaders && block <= cut.limit;
  const char* along = cut.with_signatures ? kWithSignatures : "leaders";
  std::vector<Alternative> ways{way("pairs", false, "short enough for the leaders' messages")};
  if (cut.by_leaders) ways.push_back(way(along, true, "too long for the leaders' messages"));
  return plan_by(ways, is_short ? along : "pairs");
}

/// The MPI library's own, of which there is no model.
void go_by_mpi(Plan& plan, const char* why) {
  const std::string mpi = name_of(BcastAlgorithm::kMpi);
  if (plan.chosen.algorithm == mpi) return;
  plan.chosen.remark = why;
  plan.others.insert(plan.others.begin(), plan.chosen);
  plan.chosen = {mpi, 1, {.seconds = -1}, ""};
}

Plan own_plan(OpKind op, const Operand& operand, const Shape& shape, const Machine& machine, ReduceAlgorithm asked) {
  const std::size_t bytes = operand.bytes;
  switch (op) {
    case OpKind::kAllreduce: return reduction(operand, shape, machine, false, asked);
    case OpKind::kReduce: return reduction(operand, shape, machine, true);
    case OpKind::kBcast: return bcast(bytes, shape, machine);
    case OpKind::kAllgather: return allgather(bytes, shape, machine);
    case OpKind::kReduceScatter: return reduce_scatter(bytes, shape, machine);
    case OpKind::kAlltoall: return alltoall(bytes, shape, machine);
    default: throw UsageError(std::string("op=") + name_of(op) + ": there is no plan of it");
  }
}

}  // namespace

const std::vector<OpKind>& planned_ops() {
  static const std::vector<OpKind> ops = {OpKind::kAllreduce, OpKind::kReduce,        OpKind::kBcast,
                                          OpKind::kAllgather, OpKind::kReduceScatter, OpKind::kAlltoall};
  return ops;
}

Plan plan_of(OpKind op, const Operand& operand, const Shape& shape, const Machine& machine, const Asked& asked) {
  Plan plan = own_plan(op, operand, shape, machine, asked.allreduce);
  if (shape.ranks == 1) return plan;
  if (asked.by_mpi)
    go_by_mpi(plan, "ACCDP_BASELINE says mpi");
  else if (op == OpKind::kAllreduce && asked.allreduce == ReduceAlgorithm::kMpi)
    go_by_mpi(plan, "ACCDP_ALLREDUCE says mpi");
  return plan;
}

}  // namespace accdp
