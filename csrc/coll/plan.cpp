#include "coll/plan.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "coll/bcast_stream.hpp"
#include "coll/block_frames.hpp"
#include "coll/piecewise_exchange.hpp"

namespace accdp {
namespace {

constexpr std::size_t kLine = 64;

std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }
std::size_t at_least_one(std::size_t steps) { return std::max<std::size_t>(steps, 1); }

Plan reduction(const Operand& operand, const Shape& shape, const Machine& m, bool receiver_only) {
  const std::size_t bytes = operand.bytes;
  Plan plan;
  if (shape.nodes == 1) {
    const bool flat = bytes <= shape.flat_bytes;
    plan.chosen = {shape.ranks == 1 ? "alone"
                   : flat           ? "flat"
                                    : "slices",
                   1, node_reduce(bytes, shape.ranks, shape, m), ""};
    if (shape.ranks == 1) return plan;
    Shape other = shape;
    other.flat_bytes = flat ? 0 : shape.slot_bytes;
    if (flat && bytes > 0)
      plan.others.push_back({"slices", 1, node_reduce(bytes, shape.ranks, other, m), "up to ACCDP_FLAT_BYTES: flat"});
    else if (!flat && bytes <= shape.slot_bytes)
      plan.others.push_back({"flat", 1, node_reduce(bytes, shape.ranks, other, m), "above ACCDP_FLAT_BYTES"});
    return plan;
  }
  const Choice choice = receiver_only ? choose_reduce(operand, shape, m) : choose_allreduce(operand, shape, m);
  for (const ReduceAlgorithmRow& row : reduce_algorithm_rows()) {
    if (row.id == ReduceAlgorithm::kAuto || row.id == ReduceAlgorithm::kMpi) continue;
    const bool possible = may_reduce_by(row.id, bytes, shape, receiver_only);
    std::vector<int> lanes{1};
    if (row.id == ReduceAlgorithm::kPipeline && shape.local_size > 1 && !receiver_only) lanes = {1, shape.local_size};
    for (int each : lanes) {
      Alternative way{row.name, each, {.seconds = -1}, ""};
      if (possible) way.estimate = reduce_estimate(row.id, operand, shape, m, receiver_only, each);
      if (row.id == choice.algorithm && each == choice.lanes) {
        plan.chosen = way;
        continue;
      }
      if (!possible)
        way.remark = receiver_only ? "only where all get the result" : "only up to a slot: ACCDP_CHUNK_BYTES";
      else if (!row.is_offered)
        way.remark = "for comparison";
      else if (row.id == ReduceAlgorithm::kPipeline && each != lanes_for(bytes, shape))
        way.remark = each == 1 ? "leaders: below a quarter of ACCDP_CHUNK_BYTES"
                               : "lanes: from a quarter of ACCDP_CHUNK_BYTES, on few nodes";
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
  const Estimate each = node_bcast(e.chunk_bytes, shape.node_ranks(), shape, m);
  const double wire = bcast_seconds(algorithm, shape.nodes, frames, static_cast<double>(bytes), m.link);
  e.seconds += std::max(wire, each.seconds * static_cast<double>(frames)) + each.seconds;
  // The last frame may be short enough for fewer steps.
  e.steps += each.steps * (frames - 1) + node_bcast(bytes - (frames - 1) * chunk, shape.node_ranks(), shape, m).steps;
  // Every round of `nodes` frames goes as the first one.
  for (const Hop& hop : bcast_schedule(algorithm, shape.nodes, 0, std::min<std::size_t>(frames, shape.nodes))) {
    const std::size_t sent = (frames - 1 - hop.frame) / shape.nodes + 1;
    const bool has_last = (frames - 1 - hop.frame) % shape.nodes == 0;
    e.wire_bytes += hop.to.size() * (sent * chunk - (has_last ? frames * chunk - bytes : 0));
  }
  return way;
}

Plan bcast(std::size_t bytes, const Shape& shape, const Machine& m) {
  if (shape.nodes == 1)
    return {{shape.ranks == 1 ? "alone" : "chunks", 1, node_bcast(bytes, shape.ranks, shape, m), ""}, {}};
  const StreamOptions options = plain_stream();
  const std::size_t chunk = std::min(options.chunk_bytes, frame_limit(shape.slot_bytes));
  BcastAlgorithm chosen = options.algorithm;
  if (chosen == BcastAlgorithm::kAuto)
    chosen = choose_bcast(shape.nodes, at_least_one(ceil_div(bytes, chunk)), static_cast<double>(bytes), m.link);
  Plan plan{bcast_by(chosen, bytes, chunk, shape, m), {}};
  if (options.algorithm == BcastAlgorithm::kAuto && bcasts_with_signatures(bytes, shape)) {
    plan.others.push_back(plan.chosen);
    Estimate e = with_signatures(bytes, bytes, shape, m);
    e.wire_bytes = bytes * (shape.nodes - 1);
    e.chunk_bytes = bytes;
    plan.chosen = {kWithSignatures, 1, e, ""};
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

/// allgather (gathers, by leaders) or reduce_scatter over nodes, on node 0: the fullest; the others share the rest
/// evenly. Segments between those in which a stream ends are alike: so they are counted, not gone through.
Plan block_pipeline(std::size_t block, const Shape& shape, const Machine& m, bool gathers) {
  const int n = shape.nodes, k = shape.node_ranks();
  const std::size_t total = block * shape.ranks, others = n - 1, rest = shape.ranks - k;
  const BlockCut cut(total, shape);
  const int lanes = cut.lanes;
  std::vector<Streams> streams;
  for (const auto& [nodes, ranks] : {std::pair<std::size_t, std::size_t>{1, k},
                                     {rest % others, rest / others + 1},
                                     {others - rest % others, rest / others}})
    if (nodes > 0)
      streams.push_back({nodes, block * ranks, stream_frame_bytes(block * ranks, total, cut.segment_bytes, n, lanes)});
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
    for (const Streams& s : streams) segment += s.nodes * s.of(first, lanes);
    const std::size_t own = streams[0].of(first, lanes), longest = std::min(own, streams[0].frame_bytes);
    const std::size_t steps =
        k == 1 ? 0 : ceil_div(segment, shape.slot_bytes) + ceil_div(gathers ? own : longest, shape.slot_bytes);
    e.steps += steps * count;
    const double all = static_cast<double>(segment), mine = static_cast<double>(own);
    const double link_s = (gathers ? mine * (n - 1) : all - mine) / m.link.bytes_per_s;
    const double own_s = static_cast<double>(steps) * m.step_s + 2 * (all + mine) / m.node_bytes_per_s +
                         2 * (n - 2) * m.message_s +
                         (gathers ? 0 : (all * k / lanes + mine * n) / m.reduce_bytes_per_s);
    // Of the first one nothing overlaps.
    const double alone = first == 0 ? m.link.latency_s + link_s + own_s : 0;
    e.seconds += alone + static_cast<double>(first == 0 ? count - 1 : count) * std::max(link_s, own_s);
  }
  e.wire_bytes = gathers ? block * k * (n - 1) : block * rest;
  e.chunk_bytes = largest;
  return {{lanes > 1 ? "lanes" : "leaders", lanes, e, ""}, {}};
}

/// Every rank with its like on the other nodes; while the wire carries pieces the node hands round others, but for the
/// last one.
Plan gather_by_likes(std::size_t block, const Shape& shape, const Machine& m) {
  const int n = shape.nodes, k = shape.local_size;
  const std::size_t most = exchange_piece_bytes(shape.slot_bytes, n - 1), piece = std::min(block, most);
  const std::size_t steps = n * ceil_div(block, most);
  Estimate e = meeting(shape, m) += {m.step_s, 1, 0, 0};
  auto shown_s = [&](double bytes) { return k * bytes / m.node_bytes_per_s; };  // put into a slot, and taken from k - 1
  const double bytes = static_cast<double>(block), all_s = static_cast<double>(steps) * m.step_s + shown_s(n * bytes);
  const double wire_s = exchange_seconds(n - 1, k * bytes, m);
  const double last_s = m.step_s + shown_s(static_cast<double>(piece));
  e.seconds += bytes / m.node_bytes_per_s + std::max(all_s, wire_s + last_s);
  e.steps += steps;
  e.wire_bytes = block * k * (n - 1);
  e.chunk_bytes = piece;
  return {{"lanes", k, e, ""}, {}};
}

Plan allgather(std::size_t block, const Shape& shape, const Machine& m) {
  if (const std::size_t carried = block * shape.node_ranks(), all = block * shape.ranks;
      goes_with_signatures(carried, all, shape)) {
    Estimate e = with_signatures(carried, all, shape, m);
    e.wire_bytes = carried * (shape.nodes - 1);
    e.chunk_bytes = block;
    return {{kWithSignatures, 1, e, ""}, {}};
  }
  if (shape.nodes > 1 && shape.local_size == 1) {
    Estimate e = meeting(shape, m);
    e.seconds += exchange_seconds(shape.nodes - 1, static_cast<double>(block), m);
    e.wire_bytes = block * (shape.nodes - 1);
    e.chunk_bytes = std::min(block, exchange_piece_bytes(shape.slot_bytes, shape.nodes - 1));
    return {{"pairs", 1, e, ""}, {}};
  }
  if (shape.nodes > 1 && lanes_for(block * shape.ranks, shape) > 1) return gather_by_likes(block, shape, m);
  if (shape.nodes > 1) return block_pipeline(block, shape, m, true);
  if (shape.ranks == 1) return {{"alone", 1, {}, ""}, {}};
  const double bytes = static_cast<double>(block);
  Estimate e = rounds(at_least_one(ceil_div(block, shape.slot_bytes)), bytes, bytes * (shape.ranks - 1), m);
  e.chunk_bytes = std::min(block, shape.slot_bytes);
  return {{"chunks", 1, e, ""}, {}};
}

Plan reduce_scatter(std::size_t all, const Shape& shape, const Machine& m) {
  const std::size_t block = all / shape.ranks;
  if (shape.nodes > 1) return block_pipeline(block, shape, m, false);
  const int k = shape.ranks;
  const std::size_t share = shape.slot_bytes / k / kLine * kLine;
  const double bytes = static_cast<double>(block);
  Estimate e = rounds(at_least_one(ceil_div(block, share)), bytes * (k - 1), 0, m);
  e.seconds += bytes * k / m.reduce_bytes_per_s;
  e.chunk_bytes = std::min(block, share);
  return {{"slices", 1, e, ""}, {}};
}

Plan alltoall(std::size_t all, const Shape& shape, const Machine& m) {
  const int k = shape.node_ranks();
  const std::size_t block = all / shape.ranks, others = shape.ranks - k;
  const std::size_t table = ceil_div(k * sizeof(std::uint64_t), kLine) * kLine;
  const std::size_t most = (shape.slot_bytes - table) / k / kLine * kLine;
  const double bytes = static_cast<double>(block);
  Estimate e = rounds(k == 1 ? 1 : at_least_one(ceil_div(block, most)), bytes * (k - 1), bytes * (k - 1), m);
  e.chunk_bytes = block;
  if (shape.nodes == 1) return {{"chunks", 1, e, ""}, {}};
  // The sizes first; the node's ranks share its link.
  e.seconds +=
      meeting(shape, m).seconds + exchange_seconds(others, 8.0 * k, m) + exchange_seconds(others, bytes * k, m);
  e.wire_bytes = k * others * (block + sizeof(std::uint64_t));
  e.chunk_bytes = std::min(block, exchange_piece_bytes(shape.slot_bytes, shape.ranks));
  return {{"pairs", 1, e, ""}, {}};
}

/// Puts the named way in the place of the chosen one.
void take(Plan& plan, const std::string& name, const char* remark) {
  if (plan.chosen.algorithm == name) return;
  auto asked = std::find_if(plan.others.begin(), plan.others.end(), [&](auto& way) { return way.algorithm == name; });
  plan.chosen.remark = remark;
  if (asked == plan.others.end()) asked = plan.others.insert(asked, {name, 1, {.seconds = -1}, ""});
  std::swap(plan.chosen, *asked);
  plan.chosen.remark.clear();
}

Plan automatic(OpKind op, const Operand& operand, const Shape& shape, const Machine& machine) {
  const std::size_t bytes = operand.bytes;
  switch (op) {
    case OpKind::kAllreduce: return reduction(operand, shape, machine, false);
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
  Plan plan = automatic(op, operand, shape, machine);
  const bool is_allreduce = op == OpKind::kAllreduce;
  if (asked.by_mpi)
    take(plan, "mpi", "ACCDP_BASELINE says mpi");
  else if (is_allreduce && asked.allreduce == ReduceAlgorithm::kMpi)
    take(plan, "mpi", "ACCDP_ALLREDUCE says mpi");
  else if (is_allreduce && shape.nodes > 1 && asked.allreduce != ReduceAlgorithm::kAuto)
    take(plan, name_of(asked.allreduce), "ACCDP_ALLREDUCE says which");
  return plan;
}

}  // namespace accdp
