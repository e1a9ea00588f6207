// Allgather, blocks of any size. On one node: in each step every rank hands the next piece of its block to all others.
// On several nodes a pipeline of segments, each of which has a frame of every node's blocks:
//   1. on the node the ranks show each other what their blocks have of the segment (1 step);
//   2. between nodes: wire_reduction.hpp, its second half; leaders, or all ranks, each for its lane, send their node's
//      frame to every other node;
//   3. who speaks shows what came, and all take it (1 step).
// With one rank on every node each sends its block to every other, straight from and to its place.
// Cost: ceil(largest block / c) steps on one node; on several 2*ceil(sum of blocks / c), and each block leaves its node
// nodes-1 times.
#include <algorithm>
#include <cstring>
#include <optional>

#include "coll/algorithms.hpp"
#include "coll/block_frames.hpp"
#include "coll/segment_pipeline.hpp"
#include "node/copy_out.hpp"

namespace accdp {
namespace {

void allgather_on_node(Context& c, ConstBytes in, const std::vector<Bytes>& outs) {
  const Topology& t = c.topology();
  std::size_t largest = 0, total = 0;
  for (int rank : t.neighbours()) {
    largest = std::max(largest, outs[rank].size());
    total += outs[rank].size();
  }
  auto piece = [&](auto block, std::size_t at) {
    const std::size_t begin = std::min(at, block.size());
    return block.subspan(begin, std::min(c.slot_bytes(), block.size() - begin));
  };
  const bool in_place = in.data() == outs[t.rank()].data();
  std::size_t done = 0;
  do {
    const ConstBytes mine = piece(in, done);
    std::byte* slot = c.open();
    // The slot last, out of the cache that the own piece is in by then, so that others find it in one, too.
    if (!in_place) copy_out(piece(outs[t.rank()], done).data(), mine.data(), mine.size(), total);
    if (!mine.empty()) std::memcpy(slot, mine.data(), mine.size());
    c.publish();
    for (int rank : t.neighbours()) {
      const Bytes theirs = piece(outs[rank], done);
      if (rank == t.rank() || theirs.empty()) continue;
      c.await(t.local_of(rank));
      copy_out(theirs.data(), c.slot(t.local_of(rank)), theirs.size(), total);
    }
    done += c.slot_bytes();
  } while (done < largest);
}

/// Whether what others send would overwrite `in` before it was read.
bool is_in_the_way(ConstBytes in, const std::vector<Bytes>& outs, int rank) {
  return in.data() != outs[rank].data() &&
         std::any_of(outs.begin(), outs.end(), [&](Bytes out) { return overlap(out, in); });
}

/// Over nodes; this rank's block is in its place.
class GatherPipeline : SegmentPipeline {
 public:
  GatherPipeline(Context& c, const std::vector<Bytes>& outs, const BlockFrames& frames)
      : SegmentPipeline(c, frames.grid()), outs_(outs), frames_(frames), node_(c.topology().node()) {
    const Reduction none{Datatype::kBytes, ReduceOp::kSum};
    if (speaks_) wire_.emplace(c, grid_, lane(), none, -1, ahead_, nullptr, WireReduction::Part::kGather);
  }

  void run() {
    SegmentPipeline::run([&](std::size_t i) { begin(i); }, [&](std::size_t i) { end(i); });
  }

 private:
  using Part = BlockFrames::Part;
  bool is_mine(const Part& part) const { return part.rank == c_.topology().rank(); }
  bool is_near(const Part& part) const { return c_.topology().is_near(part.rank); }
  std::byte* memory(const Part& part) const { return outs_[part.rank].data() + part.offset; }

  void begin(std::size_t segment) {
    const FrameGrid::Cut all = frames_.stream(segment, node_);
    for (std::size_t at = 0; c_.local_size() > 1 && at < all.bytes; at += c_.slot_bytes())
      exchange_on_node({all.begin + at, std::min(c_.slot_bytes(), all.bytes - at)});
    if (!speaks_) return;
    const Bytes room = this->room(segment);
    if (const std::size_t frame = grid_.frame(segment, lane(), node_); frame != FrameGrid::kNone) {
      std::byte* place = room.data() + (grid_.cut(frame).begin - grid_.segment(segment).begin);
      frames_.visit(segment, grid_.cut(frame),
                    [&](const Part& part) { std::memcpy(place + part.at, memory(part), part.bytes); });
    }
    wire_->start(segment, room);
  }

  /// The ranks of the node show each other what their blocks have of a range of the node's stream.
  void exchange_on_node(const FrameGrid::Cut& range) {
    const Topology& t = c_.topology();
    std::byte* slot = c_.open();
    frames_.visit_stream(node_, range, [&](const Part& part) {
      if (is_mine(part)) std::memcpy(slot + part.at, memory(part), part.bytes);
    });
    c_.publish();
    frames_.visit_stream(node_, range, [&](const Part& part) {
      if (is_mine(part)) return;
      c_.await(t.local_of(part.rank));
      std::memcpy(memory(part), c_.slot(t.local_of(part.rank)) + part.at, part.bytes);
    });
  }

  void end(std::size_t segment) {
    if (speaks_) wire_->finish(segment);
    const FrameGrid::Cut all = grid_.segment(segment);
    if (c_.local_size() == 1) {
      const Bytes got = room(segment);
      frames_.visit(segment, all, [&](const Part& part) {
        if (!is_near(part)) std::memcpy(memory(part), got.data() + part.at, part.bytes);
      });
      return;
    }
    for (std::size_t at = 0; at < all.bytes; at += c_.slot_bytes())
      hand_round(segment, {all.begin + at, std::min(c_.slot_bytes(), all.bytes - at)});
  }

  /// Who speaks for a lane shows what came there; all take the blocks of other nodes' ranks.
  void hand_round(std::size_t segment, const FrameGrid::Cut& range) {
    if (speaks_) {
      std::byte* slot = c_.open();
      const FrameGrid::Cut mine = BlockFrames::overlap(grid_.lane(segment, lane()), range);
      if (mine.bytes)
        std::memcpy(slot + (mine.begin - range.begin),
                    room(segment).data() + (mine.begin - grid_.segment(segment).begin), mine.bytes);
    } else {
      c_.open_unwritten();
    }
    c_.publish();
    frames_.visit(segment, range, [&](const Part& part) {
      if (is_near(part)) return;
      c_.await(speaker(part.lane));
      std::memcpy(memory(part), c_.slot(speaker(part.lane)) + part.at, part.bytes);
    });
  }

  const std::vector<Bytes>& outs_;
  const BlockFrames& frames_;
  const int node_;
  std::optional<WireReduction> wire_;
};

/// A rank on every node: nobody to share the work with, so blocks go straight to their places.
void exchange_blocks(Context& c, const std::vector<Bytes>& outs) {
  const int me = c.topology().rank(), ranks = c.topology().size();
  std::vector<Incoming> incoming;
  std::vector<Outgoing> outgoing;
  for (int step = 1; step < ranks; ++step) {  // each rank begins with another peer
    const int from = (me + ranks - step) % ranks;
    incoming.push_back({from, outs[from]});
    outgoing.push_back({(me + step) % ranks, outs[me]});
  }
  c.exchange(incoming, outgoing);
}

}  // namespace

void allgather(Context& c, ConstBytes in, const std::vector<Bytes>& outs) {
  const Topology& t = c.topology();
  if (t.nodes() == 1 && t.size() > 1) {
    c.note({"chunks", 1, std::min(in.size(), c.slot_bytes())});
    if (!is_in_the_way(in, outs, t.rank())) return allgather_on_node(c, in, outs);
    copy(outs[t.rank()], in);
    return allgather_on_node(c, outs[t.rank()], outs);
  }
  if (t.nodes() > 1) c.meet();
  copy(outs[t.rank()], in);
  if (t.size() == 1) return c.note({"alone"});
  if (c.shape().local_size == 1) {
    c.note({"pairs", 1, in.size()});
    return exchange_blocks(c, outs);
  }
  const BlockFrames frames = frames_of(c, outs);
  const FrameGrid& grid = frames.grid();
  c.note({grid.lanes() > 1 ? "lanes" : "leaders", grid.lanes(), grid.largest()});
  if (grid.lanes() > 1) c.meet();  // ranks that do not lead must not send before signatures are compared
  GatherPipeline(c, outs, frames).run();
}

}  // namespace accdp
