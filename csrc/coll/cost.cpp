#include "coll/cost.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "base/rounding.hpp"
#include "coll/leader_pieces.hpp"
#include "coll/meeting.hpp"

namespace accdp {
namespace {

constexpr std::size_t kLeastPiece = 32 << 10;  // of a message on a node: each costs a hand-over
constexpr std::size_t kFramesPerSlot = 64;     // at most: shorter frames cost more than they gain

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

/// among(k): what k ranks of a node take. On all nodes at once.
template <class Among>
Estimate on_nodes(const Shape& shape, Among among) {
  Estimate all = among(shape.ranks_on_node_0());
  if (shape.node_ranks() != shape.ranks_on_node_0()) all.seconds = among(shape.node_ranks()).seconds;
  return all;
}

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
    const auto on_node = [&](std::size_t segment_bytes) {
      Estimate one = node_reduce(segment_bytes, shape, m);
      return receiver_only ? one : one += node_bcast(segment_bytes, shape, m, bytes);
    };
    const Estimate one = on_node(grid.segment_bytes);
    node_s = one.seconds;
    // The last segment may be short enough for another way on the node.
    const std::size_t before = std::max<std::size_t>(grid.segments, 1) - 1;
    if (grid.segments) all.steps = before * one.steps + on_node(bytes - before * grid.segment_bytes).steps;
  }
  const double messages = n - 1, frame = static_cast<double>(grid.frame_bytes);
  const double link_s = 2 * messages * frame * lanes / m.link.bytes_per_s;
  const double own_s = node_s + 4 * (messages - 1) * m.message_s + n * frame / m.reduce_bytes_per_s;
  const double segments = static_cast<double>(std::max<std::size_t>(grid.segments, 1));
  all.seconds = 2 * m.link.latency_s + link_s + own_s + (segments - 1) * std::max(link_s, own_s);
  const std::size_t owned = grid.owned_by_node_0(bytes, n);
  all.wire_bytes = bytes - owned + (receiver_only ? 0 : owned * (n - 1));
  all.chunk_bytes = std::min(bytes, grid.frame_bytes);
  return all;
}

/// Leaders that hold all of it.
Estimate between_leaders(ReduceAlgorithm algorithm, const Operand& held, int n, const Machine& m, bool receiver_only) {
  const std::size_t partial = held.bytes * held.partial_width, message = leader_message_bytes(algorithm, held, n);
  const double all = static_cast<double>(held.bytes), wide = static_cast<double>(partial);
  switch (algorithm) {
    case ReduceAlgorithm::kDirect:
      return {exchange_seconds(n - 1, all, m) + n * all / m.reduce_bytes_per_s, 0,
              receiver_only ? 0 : held.bytes * (n - 1), message};  // node 0 has the receiver
    case ReduceAlgorithm::kRecursiveDoubling: {
      const int whole = std::bit_floor(unsigned(n)), rounds = std::bit_width(unsigned(whole)) - 1;
      // What is above a power of two is folded in before, and gets the result after.
      const int all_rounds = rounds + (n > whole ? 2 : 0);
      return {all_rounds * exchange_seconds(1, wide, m) + (rounds + 1) * 2 * wide / m.reduce_bytes_per_s, 0,
              partial * (n > whole ? 1 : rounds), message};  // node 0 is then one of those that hand theirs over
    }
    case ReduceAlgorithm::kRing: {
      // In every round some node sends the first share, which is the longest.
      const double share = static_cast<double>(message);
      return {2 * (n - 1) * exchange_seconds(1, share, m) + (n - 1) * 2 * share / m.reduce_bytes_per_s, 0,
              ring_sent_bytes(partial, n), message};
    }
    default: throw UsageError(std::string("algorithm=") + name_of(algorithm) + ": expected one that has a cost");
  }
}

}  // namespace

Shape::Shape(std::vector<Nodes> of_all, std::size_t of_slot, std::size_t of_flat)
    : alike(std::move(of_all)), slot_bytes(of_slot), flat_bytes(of_flat) {
  std::erase_if(alike, [](const Nodes& none) { return none.count == 0; });
  bool is_even = true;
  for (const Nodes& some : alike) {
    nodes += some.count;
    ranks += some.count * some.ranks;
    most_local = std::max(most_local, some.ranks);
    least_local = least_local ? std::min(least_local, some.ranks) : some.ranks;
    is_even = is_even && some.ranks == ranks_on_node_0();
  }
  if (is_even) local_size = most_local;
}

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

std::size_t node_piece_bytes(std::size_t bytes, std::size_t slot_bytes, bool is_crowded) {
  constexpr std::size_t kPieces = 8, kMostPiece = 256 << 10, kPage = 4096;
  // Who shares a core does not read while the source writes: for each piece they take turns, which costs as long as it
  // takes to copy some 50 KiB.
  if (is_crowded) return slot_bytes;
  // Of longer ones the source's own cache keeps less than a whole piece until the others read it.
  return std::clamp(bytes / kPieces / kPage * kPage, std::min(kLeastPiece, slot_bytes),
                    std::min(kMostPiece, slot_bytes));
}

Estimate node_bcast(std::size_t bytes, const Shape& shape, const Machine& m, std::size_t of_bytes) {
  return on_nodes(shape, [&](int k) -> Estimate {
    if (k == 1) return {};
    const std::size_t piece =
        std::min(bytes, node_piece_bytes(std::max(bytes, of_bytes), shape.slot_bytes, shape.is_crowded));
    const std::size_t steps = piece ? ceil_div(bytes, piece) : 1;
    // But for the first piece, in and out overlap.
    return {steps * m.step_s + copy_s(static_cast<double>(bytes + piece), m), steps, 0, piece};
  });
}

std::size_t scatter_piece_bytes(std::size_t block, int k, std::size_t slot_bytes, bool is_crowded) {
  // Root writes all others' shares before they read: of many ranks' short ones that takes no longer than a hand-over.
  const std::size_t least = std::min(kLeastPiece, slot_share_bytes(k, slot_bytes));
  return std::max(slot_share_bytes(k, node_piece_bytes(block * k, slot_bytes, is_crowded)), least);
}

/// A line at least: estimates ask for the shares of more ranks than some node has, whose slots may be shorter.
std::size_t slot_share_bytes(int k, std::size_t slot_bytes) {
  return std::max<std::size_t>(slot_bytes / k / kLine, 1) * kLine;
}

std::size_t reduce_chunk_bytes(int k, std::size_t slot_bytes) { return slot_share_bytes(k, slot_bytes) * k; }

Estimate node_reduce(std::size_t bytes, const Shape& shape, const Machine& m) {
  return on_nodes(shape, [&](int k) -> Estimate {
    if (k == 1) return {};
    const double all = static_cast<double>(bytes);
    if (bytes <= shape.flat_bytes) return {m.step_s + copy_s(all, m) + k * all / m.reduce_bytes_per_s, 1, 0, bytes};
    const std::size_t chunk = reduce_chunk_bytes(k, shape.slot_bytes), steps = ceil_div(bytes, chunk) + 1;
    // The slices of the others in, the own one reduced and copied, the others' results out.
    const double copied = all * (k - 1) / k + all / k + all * (k - 1) / k;
    return {steps * m.step_s + copy_s(copied, m) + all / m.reduce_bytes_per_s, steps, 0, std::min(bytes, chunk)};
  });
}

double exchange_seconds(std::size_t messages, double bytes_each, const Machine& m) {
  if (messages == 0) return 0;
  const double one = bytes_each / m.link.bytes_per_s, others = static_cast<double>(messages - 1);
  return m.link.latency_s + one + others * std::max(one, 2 * m.message_s);
}

int meeting_rounds(const Shape& shape) {
  if (shape.meets_at_hub) return 2;
  int rounds = 0;
  for_meeting_rounds(shape.nodes, [&](int, int) { ++rounds; });
  return rounds;
}

Estimate meeting(const Shape& shape, const Machine& m) {
  Estimate all{m.step_s, 1, 0, 0};
  const auto add = [&](int, int messages) { all.seconds += exchange_seconds(messages, kSignatureBytes, m); };
  if (shape.meets_at_hub)
    all.seconds += 2 * exchange_seconds(shape.nodes - 1, kSignatureBytes, m);
  else
    for_meeting_rounds(shape.nodes, add);
  return all;
}

bool goes_with_signatures(std::size_t carried, std::size_t shown, const Shape& shape) {
  const bool fits = shape.node_ranks() == 1 || shown <= shape.slot_bytes;
  return shape.nodes > 1 && shape.nodes <= kMeetingFanOut && carried <= kMostCarriedBytes && fits;
}

bool bcasts_with_signatures(std::size_t bytes, const Shape& shape) { return goes_with_signatures(bytes, bytes, shape); }

namespace {

/// Each part begins with a head, at a cache line.
std::size_t parts_bytes(std::size_t bytes, const Shape& shape) {
  return bytes + (2 * std::size_t(shape.nodes) - 1) * kSignatureBytes;
}

}  // namespace

bool reduce_scatters_with_signatures(std::size_t bytes, const Shape& shape) {
  return goes_with_signatures(parts_bytes(bytes, shape), bytes, shape) &&
         (shape.node_ranks() == 1 || bytes <= shape.flat_bytes);
}

bool scatters_with_signatures(std::size_t block, const Shape& shape) {
  const std::size_t all = block * shape.ranks;
  return goes_with_signatures(parts_bytes(all, shape), all, shape);
}

AlltoallCut::AlltoallCut(const Shape& shape) : ranks(shape.ranks) {
  constexpr std::size_t kSize = sizeof(std::uint64_t), kMostAlong = 32 << 10;
  if (shape.nodes == 1) return;
  const std::size_t nodes = shape.nodes, all = shape.ranks, slot_bytes = shape.slot_bytes;
  std::size_t blocks = 0;  // of one node for all others, at most
  for (const Shape::Nodes& alike : shape.alike) blocks = std::max(blocks, alike.ranks * (all - alike.ranks));
  const std::size_t blocks_of_rank = all - shape.least_local, heads = 2 * nodes * kSignatureBytes;
  by_leaders = true;
  const std::size_t least = table_bytes(shape.most_local) + shape.most_local * kLine;
  by_leaders = least <= slot_bytes && blocks * kSize <= slot_bytes;
  if (!by_leaders) return;
  std::size_t most = slot_bytes;  // of what leaders send, and show their nodes
  with_signatures = shape.nodes <= kMeetingFanOut && blocks * kSize + heads <= kMostCarriedBytes;
  if (with_signatures) most = std::min(most, kMostCarriedBytes - heads);
  limit = std::min({kMostAlong, most / blocks - kSize, (slot_bytes - least) / 2 / blocks_of_rank});
  room_bytes = ceil_div(blocks_of_rank * limit, kLine) * kLine;
}

std::size_t AlltoallCut::table_bytes(int k) const {
  return ceil_div(std::size_t(by_leaders ? ranks : k) * sizeof(std::uint64_t), kLine) * kLine;
}

bool bcasts_by_tree(std::size_t bytes, const Shape& shape) {
  return shape.meets_at_hub || bytes * (shape.nodes - 1) > kMostCarriedBytes;
}

bool allgathers_with_signatures(std::size_t node_bytes, std::size_t all_bytes, const Shape& shape) {
  return goes_with_signatures(node_bytes, all_bytes, shape);
}

namespace {

/// All that passes the hub has one link to share: not much more of it than of messages' ways.
bool is_short_at_hub(std::size_t to_each, std::size_t from_each, const Shape& shape, const Machine& m) {
  constexpr double kMostWays = 4;
  const double bytes = static_cast<double>(to_each + from_each) * (shape.nodes - 1);
  if (!shape.meets_at_hub) return false;
  // What nobody measured: between nodes that share cores is their machine's memory, unless somebody slows it down.
  const bool is_measured = m.link.bytes_per_s != Machine().link.bytes_per_s;
  return !is_measured || bytes / m.link.bytes_per_s <= kMostWays * m.link.latency_s;
}

}  // namespace

bool allgathers_at_hub(std::size_t all_bytes, const Shape& shape, const Machine& m) {
  return all_bytes <= kMostCarriedBytes && is_short_at_hub(all_bytes, 0, shape, m);
}

bool goes_by_hub(std::size_t bytes, const Shape& shape, const Machine& m) {
  return reduces_with_signatures(bytes, shape) && is_short_at_hub(bytes, bytes, shape, m);
}

bool reduces_with_signatures(std::size_t bytes, const Shape& shape) {
  return goes_with_signatures(bytes, bytes, shape) && (shape.node_ranks() == 1 || bytes <= shape.flat_bytes);
}

namespace {

/// What the node does for it: one that is not alone shows its leader what it has, and gets the result.
Estimate show(std::size_t carried, std::size_t shown, const Shape& shape, const Machine& m) {
  return on_nodes(shape, [&](int k) -> Estimate {
    const double copies = 4 * static_cast<double>(carried) + (k > 1 ? 2 * static_cast<double>(shown) : 0);
    const std::size_t steps = k > 1 ? 2 : 1;
    return {steps * m.step_s + copy_s(copies, m), steps, 0, 0};
  });
}

double letters_seconds(int letters, std::size_t carried, const Machine& m) {
  return exchange_seconds(letters, static_cast<double>(kSignatureBytes + carried), m);
}

}  // namespace

Estimate with_signatures(std::size_t carried, std::size_t shown, std::size_t answered, const Shape& shape,
                         const Machine& m) {
  Estimate all = show(carried, shown, shape, m);
  all.seconds += letters_seconds(shape.nodes - 1, carried, m);
  if (answered && shape.meets_at_hub) all.seconds += letters_seconds(shape.nodes - 1, answered, m);
  return all;
}

Estimate bcast_with_signatures_estimate(std::size_t bytes, const Shape& shape, const Machine& m) {
  const bool by_tree = bcasts_by_tree(bytes, shape);
  const int ways = std::bit_width(unsigned(shape.nodes - 1)), letters = by_tree ? ways : shape.nodes - 1;
  Estimate all = show(bytes, bytes, shape, m);
  all.seconds += by_tree ? ways * letters_seconds(1, bytes, m) : letters_seconds(letters, bytes, m);
  all.wire_bytes = bytes * letters;
  all.chunk_bytes = bytes;
  return all;
}

bool has_lanes(const Shape& shape) {
  const std::size_t k = shape.local_size;  // 0 where nodes differ
  return k > 1 && shape.nodes > 1 && k * shape.nodes * std::min(kLeastFrame, shape.slot_bytes / 8) <= shape.slot_bytes;
}

bool in_doubt_all_speak(const Estimate& by_all, const Estimate& by_leaders) {
  constexpr double kDoubt = 1.02;
  return by_all.seconds < kDoubt * by_leaders.seconds;
}

int lanes_for(std::size_t bytes, const Shape& shape, const Machine& m) {
  if (!has_lanes(shape)) return 1;
  const int k = shape.local_size;
  return in_doubt_all_speak(pipeline(bytes, shape, m, false, k), pipeline(bytes, shape, m, false, 1)) ? k : 1;
}

std::size_t frame_bytes_for(std::size_t bytes, const Shape& shape, int lanes) {
  const std::size_t shares = std::size_t(shape.nodes) * lanes;
  const std::size_t in_slot = lanes > 1 ? shares : std::min(shares, kFramesPerSlot);
  const std::size_t most = std::max(shape.slot_bytes / in_slot / kLine, std::size_t{1}) * kLine;
  return std::min(most, (bytes / shares / kLine + 1) * kLine);
}

bool can_reduce_by(ReduceAlgorithm algorithm, bool receiver_only) {
  switch (algorithm) {
    case ReduceAlgorithm::kDirect:
    case ReduceAlgorithm::kPipeline: return true;
    case ReduceAlgorithm::kRecursiveDoubling:
    case ReduceAlgorithm::kRing: return !receiver_only;
    default: return false;
  }
}

bool may_reduce_by(ReduceAlgorithm algorithm, std::size_t bytes, const Shape& shape, bool receiver_only) {
  if (algorithm == ReduceAlgorithm::kDirect) return bytes * shape.nodes <= shape.slot_bytes;
  if (algorithm == ReduceAlgorithm::kRecursiveDoubling && bytes > shape.slot_bytes) return false;
  return can_reduce_by(algorithm, receiver_only);
}

int partial_width(Datatype type) {
  return is_short_float(type) ? static_cast<int>(sizeof(float) / element_bytes(type)) : 1;
}

Estimate reduce_estimate(ReduceAlgorithm algorithm, const Operand& operand, const Shape& shape, const Machine& m,
                         bool receiver_only, int lanes) {
  const int n = shape.nodes, k = shape.node_ranks();
  const std::size_t bytes = operand.bytes;
  if (algorithm == ReduceAlgorithm::kDirect && reduces_with_signatures(bytes, shape)) {
    Estimate all_at_once = with_signatures(bytes, bytes, receiver_only ? 0 : bytes, shape, m);
    all_at_once.seconds += (k + n) * static_cast<double>(bytes) / m.reduce_bytes_per_s;
    if (receiver_only) all_at_once.steps = 1;  // node 0's leader has it
    all_at_once.wire_bytes = receiver_only ? 0 : bytes * (n - 1);
    all_at_once.chunk_bytes = bytes;
    return all_at_once;
  }
  Estimate total = meeting(shape, m);
  if (algorithm == ReduceAlgorithm::kPipeline) {
    if (lanes == 0) lanes = receiver_only ? 1 : lanes_for(bytes, shape, m);
    return total += pipeline(bytes, shape, m, receiver_only, lanes);
  }
  const auto add_pieces = [&](std::size_t count, std::size_t piece) {
    const Estimate between = between_leaders(algorithm, {piece, operand.partial_width}, n, m, receiver_only);
    Estimate one = node_reduce(piece, shape, m) += between;
    if (!receiver_only) one += node_bcast(piece, shape, m);
    total += {static_cast<double>(count) * one.seconds, count * one.steps, count * one.wire_bytes, between.chunk_bytes};
  };
  const std::size_t most = receiver_only ? std::max<std::size_t>(bytes, 1) : leader_piece_bytes(algorithm, n);
  const std::size_t whole = bytes / most, rest = bytes % most;
  if (whole) add_pieces(whole, most);
  if (rest || !whole) add_pieces(1, rest);
  return total;
}

double pipeline_work_seconds(std::size_t bytes, const Shape& shape, const Machine& m, int lanes) {
  const int k = shape.node_ranks();
  const double all = static_cast<double>(bytes);
  const double on_node = lanes > 1 ? lane_work_seconds(all, k, m)
                                   : node_reduce(bytes, shape, m).seconds + node_bcast(bytes, shape, m).seconds;
  return on_node + all / lanes / m.reduce_bytes_per_s;
}

namespace {

Choice choose(const Operand& operand, const Shape& shape, const Machine& machine, bool receiver_only) {
  if (goes_by_hub(operand.bytes, shape, machine)) return {ReduceAlgorithm::kDirect, 1};
  ReduceAlgorithm best = ReduceAlgorithm::kPipeline;
  double least = std::numeric_limits<double>::infinity();
  for (const ReduceAlgorithmRow& row : reduce_algorithm_rows()) {
    if (!row.is_offered || !may_reduce_by(row.id, operand.bytes, shape, receiver_only)) continue;
    const double seconds = reduce_estimate(row.id, operand, shape, machine, receiver_only).seconds;
    if (seconds < least) best = row.id, least = seconds;
  }
  return {best, 1};
}

}  // namespace

Choice choose_allreduce(const Operand& operand, const Shape& shape, const Machine& machine, ReduceAlgorithm asked) {
  const bool is_free = asked == ReduceAlgorithm::kAuto || asked == ReduceAlgorithm::kMpi;
  Choice choice = is_free ? choose(operand, shape, machine, false) : Choice{asked, 1};
  if (choice.algorithm == ReduceAlgorithm::kPipeline) choice.lanes = lanes_for(operand.bytes, shape, machine);
  return choice;
}

Choice choose_reduce(const Operand& operand, const Shape& shape, const Machine& machine) {
  return choose(operand, shape, machine, true);
}

}  // namespace accdp
