#include "coll/block_costs.hpp"

#include <algorithm>

#include "base/rounding.hpp"
#include "coll/block_frames.hpp"
#include "coll/piecewise_exchange.hpp"

namespace accdp {
namespace {

/// Nodes whose blocks have the same length together, as BlockFrames cuts them.
struct Streams {
  std::size_t nodes, bytes, frame_bytes;

  /// What the segments before that one have of each.
  std::size_t before(std::size_t segment, int lanes) const { return std::min(bytes, segment * lanes * frame_bytes); }
  std::size_t of(std::size_t segment, int lanes) const { return before(segment + 1, lanes) - before(segment, lanes); }
};

/// Every leader sends every other a part of so many bytes with its signature, never by the hub.
Estimate parts_with_signatures(double part, const Shape& shape, const Machine& m) {
  return {m.step_s + exchange_seconds(shape.nodes - 1, kSignatureBytes + part, m), 1, 0, 0};
}

/// What the leader has is shown to its node, unless that is the leader.
Estimate shown(const Shape& shape, const Machine& m) {
  if (shape.node_ranks() == 1) return {};
  return {m.step_s, shape.ranks_on_node_0() > 1 ? std::size_t{1} : 0, 0, 0};
}

}  // namespace

// Segments between those in which a stream ends are alike: so they are counted, not gone through.
Estimate block_pipeline(std::size_t block, const Shape& shape, const Machine& m, bool gathers, int lanes) {
  const int n = shape.nodes, k = shape.node_ranks();
  const std::size_t total = block * shape.ranks, ranks_here = shape.ranks_on_node_0();
  std::vector<Streams> streams;  // the first one: node 0's
  for (const auto& [nodes, ranks] : shape.alike)
    streams.push_back({std::size_t(nodes), block * ranks,
                       stream_frame_bytes(block * ranks, total, block_segment_bytes(shape, lanes), n, lanes)});
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
  return e;
}

Estimate gather_by_likes(std::size_t block, const Shape& shape, const Machine& m) {
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
  return e;
}

Estimate reduce_scatter_along(std::size_t block, const Shape& shape, const Machine& m) {
  const double all = static_cast<double>(block) * shape.ranks, part = static_cast<double>(block) * shape.node_ranks();
  const int n = shape.nodes, k = shape.node_ranks();
  Estimate e = parts_with_signatures(part, shape, m) += shown(shape, m);
  e.seconds += (k > 1 ? 2 * all + 2 * part : all) / m.node_bytes_per_s + (k * all + n * part) / m.reduce_bytes_per_s;
  e.wire_bytes = block * (shape.ranks - shape.ranks_on_node_0());
  e.chunk_bytes = block;
  return e;
}

Estimate alltoall_on_nodes(std::size_t block, const AlltoallCut& cut, const Shape& shape, const Machine& m) {
  const auto steps_of = [&](int k) {
    return k == 1 ? 1 : std::max<std::size_t>(ceil_div(block, cut.share_bytes(k, shape.slot_bytes)), 1);
  };
  const int k = shape.node_ranks();
  const double bytes = static_cast<double>(block) * (k - 1);
  return {static_cast<double>(steps_of(k)) * m.step_s + 2 * bytes / m.node_bytes_per_s,
          steps_of(shape.ranks_on_node_0()), 0, 0};
}

Estimate alltoall_estimate(std::size_t block, bool along, const AlltoallCut& cut, const Shape& shape,
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
  e += alltoall_on_nodes(block, cut, shape, m);
  // The first pieces go round in the first step, but not where all meet once more before sizes are compared.
  if (cut.by_leaders || here == 1 || block == 0) --e.steps;
  e.wire_bytes = letters * (block + kSize);
  e.chunk_bytes = std::min(block, along ? block : exchange_piece_bytes(shape.slot_bytes, shape.ranks));
  return e;
}

Estimate gather_along(std::size_t block, const Shape& shape, const Machine& m) {
  Estimate e = with_signatures(block * shape.node_ranks(), block * shape.ranks, 0, shape, m);
  e.steps = 1;  // node 0's leader has them
  e.chunk_bytes = block;
  return e;
}

Estimate scatter_along(std::size_t block, const Shape& shape, const Machine& m) {
  const double all = static_cast<double>(block) * shape.ranks, part = static_cast<double>(block) * shape.node_ranks();
  Estimate e = parts_with_signatures(part, shape, m) += shown(shape, m);
  e.seconds += (2 * all + 3 * part) / m.node_bytes_per_s;
  e.wire_bytes = block * (shape.ranks - shape.ranks_on_node_0());
  e.chunk_bytes = block;
  return e;
}

namespace {

/// Of rank 0 with the others: `most` of every block in a step.
Estimate by_pairs(std::size_t block, std::size_t most, const Shape& shape, const Machine& m) {
  const std::size_t k = shape.ranks_on_node_0(), far = shape.ranks - k;
  const double bytes = static_cast<double>(block);
  Estimate on_node;
  if (k > 1) {
    on_node.steps = std::max<std::size_t>(ceil_div(block, most), 1);
    on_node.seconds =
        static_cast<double>(on_node.steps) * m.step_s + 2 * static_cast<double>(k) * bytes / m.node_bytes_per_s;
  }
  Estimate e;
  if (far > 0) e = meeting(shape, m);
  e.seconds += std::max(on_node.seconds, exchange_seconds(far, bytes, m));
  e.steps += on_node.steps;
  e.chunk_bytes = far > 0 ? block : std::min(block, most);
  return e;
}

}  // namespace

Estimate gather_by_pairs(std::size_t block, const Shape& shape, const Machine& m) {
  return by_pairs(block, node_piece_bytes(block, shape.slot_bytes, shape.is_crowded), shape, m);
}

Estimate scatter_by_pairs(std::size_t block, const Shape& shape, const Machine& m) {
  const int k = shape.ranks_on_node_0();
  Estimate e = by_pairs(block, scatter_piece_bytes(block, k, shape.slot_bytes, shape.is_crowded), shape, m);
  e.wire_bytes = block * (shape.ranks - k);
  return e;
}

bool gathers_by_likes(std::size_t total_bytes, const Shape& shape, const Machine& m) {
  if (shape.local_size < 2) return shape.local_size == 1;
  const std::size_t block = total_bytes / shape.ranks;
  return in_doubt_all_speak(gather_by_likes(block, shape, m), block_pipeline(block, shape, m, true, 1));
}

int reduce_scatter_lanes(std::size_t total_bytes, const Shape& shape, const Machine& m) {
  if (!has_lanes(shape)) return 1;
  const std::size_t block = total_bytes / shape.ranks;
  const int k = shape.local_size;
  return in_doubt_all_speak(block_pipeline(block, shape, m, false, k), block_pipeline(block, shape, m, false, 1)) ? k
                                                                                                                  : 1;
}

}  // namespace accdp
