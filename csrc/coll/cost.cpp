#include "coll/cost.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.hpp"
#include "coll/leader_pieces.hpp"
#include "coll/meeting.hpp"

namespace accdp {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kFramesPerSlot = 64;  // at most: shorter frames cost more than they gain

std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

double copy_s(double bytes, const Machine& m) { return bytes / m.node_bytes_per_s; }

/// How the pipeline cuts a message; its frames belong to the nodes in turn.
struct Grid {
  std::size_t frame_bytes, frames, segments, segment_bytes;

  Grid(std::size_t bytes, const Shape& shape, int lanes)
      : frame_bytes(frame_bytes_for(bytes, shape, lanes)),
        frames(ceil_div(bytes, frame_bytes)),
        segments(ceil_div(frames, std::size_t(shape.nodes) * lanes)),
        segment_bytes(std::min(bytes, frame_bytes * shape.nodes * lanes)) {}

  std::size_t owned_by_node_0(std::size_t bytes, int nodes) const {
    if (frames == 0) return 0;
    const bool has_last = (frames - 1) % nodes == 0;
    return ceil_div(frames, nodes) * frame_bytes - (has_last ? frames * frame_bytes - bytes : 0);
  }
};

/// What a rank that speaks for its lane copies and reduces on its node.
double lane_work_seconds(double bytes, int k, const Machine& m) {
  return copy_s(2 * bytes * (k - 1) / k + bytes / k, m) + bytes / m.reduce_bytes_per_s;
}

/// Node work and wire overlap but for the first segment's, so the slower one counts for all segments.
Estimate pipeline(std::size_t bytes, const Shape& shape, const Machine& m, bool receiver_only, int lanes) {
  const int n = shape.nodes, k = shape.node_ranks();
  const Grid grid(bytes, shape, lanes);
  Estimate all;
  double node_s;  // a segment's, on a rank that speaks for its node
  const double segment = static_cast<double>(grid.segment_bytes);
  if (lanes > 1) {
    node_s = 2 * m.step_s + lane_work_seconds(segment, k, m);
    all.steps = 1 + 2 * grid.segments;  // one: all meet again, since not only leaders send
  } else {
    Estimate one = node_reduce(grid.segment_bytes, k, shape, m);
    if (!receiver_only) one += node_bcast(grid.segment_bytes, k, shape, m);
    node_s = one.seconds;
    // The last segment may be short enough for another way on the node.
    const std::size_t last = bytes - (grid.segments ? grid.segments - 1 : 0) * grid.segment_bytes;
    all.steps = grid.segments ? (grid.segments - 1) * one.steps + node_reduce(last, k, shape, m).steps +
                                    (receiver_only ? 0 : node_bcast(last, k, shape, m).steps)
                              : 0;
  }
  const double messages = n - 1, frame = static_cast<double>(grid.frame_bytes);
  const double link_s = 2 * messages * frame * lanes / m.link.bytes_per_s;
  const double own_s = node_s + 4 * (messages - 1) * m.message_s + n * frame / m.reduce_bytes_per_s;
  const double segments = static_cast<double>(std::max<std::size_t>(grid.segments, 1));
  all.seconds = 2 * m.link.latency_s + link_s + own_s + (segments - 1) * std::max(link_s, own_s);
  const std::size_t owned = grid.owned_by_node_0(bytes, n);
  all.wire_bytes = bytes - owned + (receiver_only ? 0 : owned * (n - 1));
  all.chunk_bytes = grid.frame_bytes;
  return all;
}

}  // namespace

Estimate& Estimate::operator+=(const Estimate& other) {
  seconds += other.seconds;
  steps += other.steps;
  wire_bytes += other.wire_bytes;
  chunk_bytes = std::max(chunk_bytes, other.chunk_bytes);
  return *this;
}

const std::vector<ReduceAlgorithmRow>& reduce_algorithm_rows() {
  using enum ReduceAlgorithm;
  static const std::vector<ReduceAlgorithmRow> rows = {
      {kAuto, "auto", "the cheapest of those that are offered", false},
      {kDirect, "direct", "every leader sends all of it to every other and reduces by itself", true},
      {kRecursiveDoubling, "recursive_doubling",
       "leaders exchange all of it in pairs, at twice the distance each round", true},
      {kRing, "ring", "reduce-scatter, then allgather, on a ring of leaders", false},
      {kPipeline, "pipeline", "frames to their nodes and back, by leaders or by all ranks, several segments at once",
       true},
      {kMpi, "mpi", "the MPI library's own over all ranks", false},
  };
  return rows;
}

const char* name_of(ReduceAlgorithm algorithm) { return reduce_algorithm_rows()[static_cast<int>(algorithm)].name; }

std::size_t node_piece_bytes(std::size_t bytes, std::size_t slot_bytes) {
  constexpr std::size_t kPieces = 8, kLeastPiece = 32 << 10, kPage = 4096;
  return std::clamp(bytes / kPieces / kPage * kPage, std::min(kLeastPiece, slot_bytes), slot_bytes);
}

Estimate node_bcast(std::size_t bytes, int k, const Shape& shape, const Machine& m) {
  if (k == 1) return {};
  const std::size_t piece = std::min(bytes, node_piece_bytes(bytes, shape.slot_bytes));
  const std::size_t steps = piece ? ceil_div(bytes, piece) : 1;
  // But for the first piece, in and out overlap.
  return {steps * m.step_s + copy_s(static_cast<double>(bytes + piece), m), steps, 0, piece};
}

std::size_t reduce_chunk_bytes(int k, std::size_t slot_bytes) {
  constexpr std::size_t kLine = 64;
  return slot_bytes / k / kLine * kLine * k;
}

Estimate node_reduce(std::size_t bytes, int k, const Shape& shape, const Machine& m) {
  if (k == 1) return {};
  const double all = static_cast<double>(bytes);
  if (bytes <= shape.flat_bytes) return {m.step_s + copy_s(all, m) + k * all / m.reduce_bytes_per_s, 1, 0, bytes};
  const std::size_t chunk = reduce_chunk_bytes(k, shape.slot_bytes), steps = ceil_div(bytes, chunk) + 1;
  // The slices of the others in, the own one reduced and copied, the others' results out.
  const double copied = all * (k - 1) / k + all / k + all * (k - 1) / k;
  return {steps * m.step_s + copy_s(copied, m) + all / m.reduce_bytes_per_s, steps, 0, std::min(bytes, chunk)};
}

double exchange_seconds(std::size_t messages, double bytes_each, const Machine& m) {
  if (messages == 0) return 0;
  const double one = bytes_each / m.link.bytes_per_s, others = static_cast<double>(messages - 1);
  return m.link.latency_s + one + others * std::max(one, 2 * m.message_s);
}

int meeting_rounds(int nodes) {
  int rounds = 0;
  for_meeting_rounds(nodes, [&](int, int) { ++rounds; });
  return rounds;
}

Estimate meeting(const Shape& shape, const Machine& m) {
  Estimate all{m.step_s, 1, 0, 0};
  for_meeting_rounds(shape.nodes,
                     [&](int, int messages) { all.seconds += exchange_seconds(messages, kSignatureBytes, m); });
  return all;
}

bool goes_with_signatures(std::size_t carried, std::size_t shown, const Shape& shape) {
  const bool fits = shape.node_ranks() == 1 || shown <= shape.slot_bytes;
  return shape.nodes > 1 && shape.nodes <= kMeetingFanOut && carried <= kMostCarriedBytes && fits;
}

bool bcasts_with_signatures(std::size_t bytes, const Shape& shape) {
  return goes_with_signatures(bytes * (shape.nodes - 1), bytes, shape);
}

bool reduces_with_signatures(std::size_t bytes, const Shape& shape) {
  return goes_with_signatures(bytes, bytes, shape) && (shape.node_ranks() == 1 || bytes <= shape.flat_bytes);
}

Estimate with_signatures(std::size_t carried, std::size_t shown, const Shape& shape, const Machine& m) {
  const bool has_others = shape.node_ranks() > 1;
  const double copies = 4 * static_cast<double>(carried) + (has_others ? 2 * static_cast<double>(shown) : 0);
  const std::size_t steps = has_others ? 2 : 1;
  return {steps * m.step_s + copy_s(copies, m) +
              exchange_seconds(shape.nodes - 1, static_cast<double>(kSignatureBytes + carried), m),
          steps, 0, 0};
}

int lanes_for(std::size_t bytes, const Shape& shape) {
  const int k = shape.local_size;  // 0 where nodes differ
  const bool fits = std::size_t(k) * shape.nodes <= kFramesPerSlot;
  return k > 1 && fits && bytes >= shape.slot_bytes / 4 ? k : 1;
}

std::size_t frame_bytes_for(std::size_t bytes, const Shape& shape, int lanes) {
  const std::size_t shares = std::size_t(shape.nodes) * lanes;
  const std::size_t most = shape.slot_bytes / std::min(shares, kFramesPerSlot) / kLine * kLine;
  return std::min(most, (bytes / shares / kLine + 1) * kLine);
}

bool may_reduce_by(ReduceAlgorithm algorithm, std::size_t bytes, const Shape& shape, bool receiver_only) {
  switch (algorithm) {
    case ReduceAlgorithm::kDirect: return bytes * shape.nodes <= shape.slot_bytes;
    case ReduceAlgorithm::kRecursiveDoubling: return bytes <= shape.slot_bytes && !receiver_only;
    case ReduceAlgorithm::kRing: return !receiver_only;
    case ReduceAlgorithm::kPipeline: return true;
    default: return false;
  }
}

int partial_width(Datatype type) {
  return is_short_float(type) ? static_cast<int>(sizeof(float) / element_bytes(type)) : 1;
}

Estimate reduce_estimate(ReduceAlgorithm algorithm, const Operand& operand, const Shape& shape, const Machine& m,
                         bool receiver_only, int lanes) {
  const int n = shape.nodes, k = shape.node_ranks();
  const std::size_t bytes = operand.bytes, partial = bytes * operand.partial_width;
  const double all = static_cast<double>(bytes), wide = static_cast<double>(partial);
  if (algorithm == ReduceAlgorithm::kDirect && reduces_with_signatures(bytes, shape)) {
    Estimate all_at_once = with_signatures(bytes, bytes, shape, m);
    all_at_once.seconds += (k + n) * all / m.reduce_bytes_per_s;
    if (receiver_only) all_at_once.steps = 1;  // node 0's leader has it
    all_at_once.wire_bytes = receiver_only ? 0 : bytes * (n - 1);
    all_at_once.chunk_bytes = bytes;
    return all_at_once;
  }
  Estimate total = meeting(shape, m);
  if (algorithm == ReduceAlgorithm::kPipeline) {
    if (lanes == 0) lanes = receiver_only ? 1 : lanes_for(bytes, shape);
    return total += pipeline(bytes, shape, m, receiver_only, lanes);
  }
  total += node_reduce(bytes, k, shape, m);
  if (!receiver_only) total += node_bcast(bytes, k, shape, m);
  const int whole = std::bit_floor(unsigned(n)), rounds = std::bit_width(unsigned(whole)) - 1;
  switch (algorithm) {
    case ReduceAlgorithm::kDirect:
      total.seconds += exchange_seconds(n - 1, all, m) + n * all / m.reduce_bytes_per_s;
      total.wire_bytes = receiver_only ? 0 : bytes * (n - 1);  // node 0 has the receiver
      total.chunk_bytes = bytes;
      break;
    case ReduceAlgorithm::kRecursiveDoubling: {
      // What is above a power of two is folded in before, and gets the result after.
      const int all_rounds = rounds + (n > whole ? 2 : 0);
      total.seconds += all_rounds * exchange_seconds(1, wide, m) + (rounds + 1) * 2 * wide / m.reduce_bytes_per_s;
      total.wire_bytes = partial * (n > whole ? 1 : rounds);  // node 0 is then one of those that hand theirs over
      total.chunk_bytes = bytes;
      break;
    }
    case ReduceAlgorithm::kRing: {
      const std::size_t most = leader_piece_bytes(algorithm, n), width = operand.partial_width;
      auto add = [&](std::size_t piece, std::size_t pieces) {
        // In every round some node sends the first share, which is the longest.
        const double share = static_cast<double>(std::min(piece, ring_share_bytes(piece, n)));
        const double each = 2 * (n - 1) * exchange_seconds(1, share, m) + (n - 1) * 2 * share / m.reduce_bytes_per_s;
        total.seconds += static_cast<double>(pieces) * each;
        total.wire_bytes += pieces * ring_sent_bytes(piece, n);
      };
      add(most * width, bytes / most);
      if (bytes % most) add(bytes % most * width, 1);
      total.chunk_bytes = ceil_div(bytes, n);
      break;
    }
    default: throw UsageError(std::string("algorithm=") + name_of(algorithm) + ": expected one that has a cost");
  }
  return total;
}

double pipeline_work_seconds(std::size_t bytes, const Shape& shape, const Machine& m, int lanes) {
  const int k = shape.node_ranks();
  const double all = static_cast<double>(bytes);
  const double on_node = lanes > 1 ? lane_work_seconds(all, k, m)
                                   : node_reduce(bytes, k, shape, m).seconds + node_bcast(bytes, k, shape, m).seconds;
  return on_node + all / lanes / m.reduce_bytes_per_s;
}

namespace {

Choice choose(const Operand& operand, const Shape& shape, const Machine& machine, bool receiver_only) {
  const std::size_t bytes = operand.bytes;
  Choice best{ReduceAlgorithm::kPipeline, 1, 0, std::numeric_limits<double>::infinity()};
  for (const ReduceAlgorithmRow& row : reduce_algorithm_rows()) {
    if (!row.is_offered || !may_reduce_by(row.id, bytes, shape, receiver_only)) continue;
    const Estimate estimate = reduce_estimate(row.id, operand, shape, machine, receiver_only);
    if (estimate.seconds < best.seconds) best = {row.id, 1, estimate.chunk_bytes, estimate.seconds};
  }
  if (best.algorithm == ReduceAlgorithm::kPipeline && !receiver_only) best.lanes = lanes_for(bytes, shape);
  return best;
}

}  // namespace

Choice choose_allreduce(const Operand& operand, const Shape& shape, const Machine& machine) {
  return choose(operand, shape, machine, false);
}

Choice choose_reduce(const Operand& operand, const Shape& shape, const Machine& machine) {
  return choose(operand, shape, machine, true);
}

}  // namespace accdp
