// Reduce-scatter, blocks of any size. On one node: in each step every rank hands every other rank a
// piece of that rank's block; the owner reduces the pieces in rank order. On several nodes a pipeline of segments, each
// of which has a frame of every node's blocks:
//   1. on the node every rank shows its contribution to the segment; who speaks for a lane reduces that lane (1 step);
//   2. between nodes: wire_reduction.hpp, its first half; leaders, or all ranks, each for its lane;
//   3. who speaks shows this node's sums, and each rank takes those of its block (1 step).
// Cost: ceil(largest block * k / c) steps on one node; on several 2*ceil(sum of blocks / c), and every block leaves
// every node but its own once.
#include <cstring>
#include <optional>

#include "base/rounding.hpp"
#include "coll/algorithms.hpp"
#include "coll/block_costs.hpp"
#include "coll/block_frames.hpp"
#include "coll/segment_pipeline.hpp"
#include "node/copies.hpp"

namespace accdp {
namespace {

std::size_t largest(const std::vector<ConstBytes>& blocks, const std::vector<int>& ranks) {
  std::size_t most = 0;
  for (int rank : ranks) most = std::max(most, blocks[rank].size());
  return most;
}

std::size_t share(const Context& c) { return slot_share_bytes(c.local_size(), c.slot_bytes()); }

template <class Block>
Block piece(const Block& block, std::size_t at, std::size_t most) {
  const std::size_t begin = std::min(at, block.size());
  return block.subspan(begin, std::min(most, block.size() - begin));
}

void reduce_scatter_on_node(Context& c, const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how) {
  const Topology& t = c.topology();
  const std::size_t total = largest(ins, t.neighbours()), most = std::min(share(c), whole_lines(total));
  std::size_t done = 0;
  do {
    std::byte* slot = c.open(c.local_size() * most);
    for (int rank : t.neighbours()) {
      const ConstBytes part = piece(ins[rank], done, most);
      if (rank != t.rank()) c.write(slot + t.local_of(rank) * most, part, t.local_of(rank));
    }
    c.publish();
    c.await_all();
    const ConstBytes mine = piece(ins[t.rank()], done, most);
    const std::span<const void*> sources = c.sources();
    for (int rank : t.neighbours())
      sources[t.local_of(rank)] = rank == t.rank() ? mine.data() : c.slot(t.local_of(rank)) + t.local_rank() * most;
    if (!mine.empty()) reduce(piece(out, done, most).data(), sources, mine.size() / element_bytes(how.type), how);
    done += most;
  } while (done < total);
}

/// Over nodes. A block that is `out` may change while later segments are read: they have none of it that was written.
class ScatterPipeline : SegmentPipeline {
 public:
  ScatterPipeline(Context& c, const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how,
                  const BlockFrames& frames)
      : SegmentPipeline(c, frames.grid()),
        ins_(ins),
        out_(out),
        how_(how),
        frames_(frames),
        node_(c.topology().node()) {
    if (speaks_) wire_.emplace(c, grid_, lane(), how, -1, ahead_, nullptr, WireReduction::Part::kScatter);
  }

  void run() {
    SegmentPipeline::run([&](std::size_t i) { begin(i); }, [&](std::size_t i) { end(i); });
  }

 private:
  void begin(std::size_t segment) {
    const FrameGrid::Cut all = grid_.segment(segment);
    if (c_.local_size() == 1)
      collect(segment, all, [to = room(segment).data()](std::size_t at, ConstBytes part) {
        std::memcpy(to + at, part.data(), part.size());
      });
    else
      for (std::size_t at = 0; at < all.bytes; at += c_.slot_bytes())
        reduce_lanes(segment, {all.begin + at, std::min(c_.slot_bytes(), all.bytes - at)});
    if (speaks_) wire_->start(segment, room(segment));
  }

  /// This rank's contribution to a range of the grid: put(where in the range, part).
  template <class Put>
  void collect(std::size_t segment, const FrameGrid::Cut& range, Put put) {
    frames_.visit(segment, range, [&](const BlockFrames::Part& part) {
      put(part.at, ins_[part.rank].subspan(part.offset, part.bytes));
    });
  }

  /// Every rank shows its contribution; who speaks for a lane reduces that.
  void reduce_lanes(std::size_t segment, const FrameGrid::Cut& range) {
    const int reader = grid_.lanes() > 1 ? -1 : c_.topology().local_of(leader_);
    collect(segment, range,
            [&, slot = c_.open(range.bytes)](std::size_t at, ConstBytes part) { c_.write(slot + at, part, reader); });
    c_.publish();
    if (!speaks_) return;
    c_.await_all();
    const FrameGrid::Cut mine = BlockFrames::overlap(grid_.lane(segment, lane()), range);
    if (mine.bytes == 0) return;
    std::vector<const void*> sources;
    for (int rank = 0; rank < c_.local_size(); ++rank) sources.push_back(c_.slot(rank) + (mine.begin - range.begin));
    reduce(room(segment).data() + (mine.begin - grid_.segment(segment).begin), sources,
           mine.bytes / element_bytes(how_.type), how_.partial());
  }

  void end(std::size_t segment) {
    if (speaks_) wire_->finish(segment);
    if (c_.local_size() == 1)
      return hand_out(segment, 0, 0, grid_.largest(), [&] { return room(segment).data() + own_at(segment, 0); });
    std::size_t longest = 0;
    for (int lane = 0; lane < grid_.lanes(); ++lane) longest = std::max(longest, own(segment, lane).bytes);
    for (std::size_t at = 0; at < longest; at += c_.slot_bytes()) {
      if (speaks_) {
        const std::size_t bytes = own(segment, lane()).bytes,
                          n = std::min(c_.slot_bytes(), bytes - std::min(bytes, at));
        std::byte* slot = c_.open(n);
        if (n) c_.write(slot, room(segment).subspan(own_at(segment, lane()) + at, n));
      } else {
        c_.open_unwritten();
      }
      c_.publish();
      for (int lane = 0; lane < grid_.lanes(); ++lane)
        hand_out(segment, lane, at, c_.slot_bytes(), [&] { return c_.await(speaker(lane)), c_.slot(speaker(lane)); });
    }
  }

  /// This node's frame in a lane, and where it is in the segment.
  FrameGrid::Cut own(std::size_t segment, int lane) const {
    const std::size_t frame = grid_.frame(segment, lane, node_);
    return frame == FrameGrid::kNone ? FrameGrid::Cut{grid_.segment(segment).begin, 0} : grid_.cut(frame);
  }
  std::size_t own_at(std::size_t segment, int lane) const {
    return own(segment, lane).begin - grid_.segment(segment).begin;
  }

  /// Copies what this rank's block has of up to `most` bytes of the node's frame, which is at shown().
  template <class Shown>
  void hand_out(std::size_t segment, int lane, std::size_t at, std::size_t most, Shown shown) {
    const FrameGrid::Cut frame = own(segment, lane);
    if (at >= frame.bytes) return;
    frames_.visit(segment, {frame.begin + at, std::min(most, frame.bytes - at)}, [&](const BlockFrames::Part& part) {
      if (part.rank != c_.topology().rank()) return;
      copy_lines(out_.data() + part.offset, shown() + part.at, part.bytes);
    });
  }

  const std::vector<ConstBytes>& ins_;
  Bytes out_;
  const Reduction how_;
  const BlockFrames& frames_;
  const int node_;
  std::optional<WireReduction> wire_;
};

}  // namespace

void reduce_scatter(Context& c, const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how) {
  const Topology& t = c.topology();
  if (t.nodes() == 1) {
    c.note({"slices", 1, std::min(out.size(), share(c))});
    return reduce_scatter_on_node(c, ins, out, how);
  }
  std::size_t total = 0;
  for (const ConstBytes& block : ins) total += block.size();
  if (!c.has_met() && reduce_scatters_with_signatures(total, c.shape()))
    return reduce_scatter_with_signatures(c, ins, out, how);
  c.meet();
  const BlockFrames frames = frames_of(c, ins, reduce_scatter_lanes(total, c.shape(), c.machine()));
  const FrameGrid& grid = frames.grid();
  c.note({grid.lanes() > 1 ? "lanes" : "leaders", grid.lanes(), grid.largest()});
  if (grid.lanes() > 1) c.meet();  // ranks that do not lead must not send before signatures are compared
  ScatterPipeline(c, ins, out, how, frames).run();
}

}  // namespace accdp
