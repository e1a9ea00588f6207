// Allgather, blocks of any size. On one node: in each step every rank hands the next piece of its block to all others.
// On several nodes, long blocks, as many ranks on each: every rank exchanges its block with its like on the other
// nodes, straight from and to its place, and shows its node its own block and what came, piece by piece. With one rank
// on every node that is all. Else a pipeline of segments, each of which has a frame of every node's blocks:
//   1. on the node the ranks show each other what their blocks have of the segment (1 step);
//   2. between nodes: wire_reduction.hpp, its second half; leaders send their node's frame to every other node;
//   3. the leader shows what came, and all take it (1 step).
// Cost: ceil(largest block / c) steps on one node, nodes times as many with all ranks speaking, 2*ceil(sum of blocks /
// c) with leaders; each block leaves its node nodes-1 times.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "coll/algorithms.hpp"
#include "coll/block_costs.hpp"
#include "coll/block_frames.hpp"
#include "coll/piecewise_exchange.hpp"
#include "coll/segment_pipeline.hpp"
#include "node/copies.hpp"

namespace accdp {
namespace {

void allgather_on_node(Context& c, ConstBytes in, const std::vector<Bytes>& outs) {
  const Topology& t = c.topology();
  std::size_t largest = 0, total = 0;
  for (int rank : t.neighbours()) {
    largest = std::max(largest, outs[rank].size());
    total += outs[rank].size();
  }
  const bool past_caches = is_past_own_caches(total);
  auto piece = [&](auto block, std::size_t at) {
    const std::size_t begin = std::min(at, block.size());
    return block.subspan(begin, std::min(c.slot_bytes(), block.size() - begin));
  };
  const bool in_place = in.data() == outs[t.rank()].data();
  std::size_t done = 0;
  do {
    const ConstBytes mine = piece(in, done);
    std::byte* slot = c.open(mine.size());
    // The slot last, out of the cache that the own piece is in by then, so that others find it in one, too.
    if (!in_place) copy_out(piece(outs[t.rank()], done).data(), mine.data(), mine.size(), past_caches);
    c.write(slot, mine);
    c.publish();
    for (int rank : t.neighbours()) {
      const Bytes theirs = piece(outs[rank], done);
      if (rank == t.rank() || theirs.empty()) continue;
      c.await(t.local_of(rank));
      copy_out(theirs.data(), c.slot(t.local_of(rank)), theirs.size(), past_caches);
    }
    done += c.slot_bytes();
  } while (done < largest);
}

std::size_t total_of(const std::vector<Bytes>& blocks) {
  std::size_t total = 0;
  for (const Bytes& block : blocks) total += block.size();
  return total;
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
    std::byte* slot = c_.open(range.bytes);
    frames_.visit_stream(node_, range, [&](const Part& part) {
      if (is_mine(part)) c_.write(slot + part.at, {memory(part), part.bytes});
    });
    c_.publish();
    frames_.visit_stream(node_, range, [&](const Part& part) {
      if (is_mine(part)) return;
      c_.await(t.local_of(part.rank));
      copy_lines(memory(part), c_.slot(t.local_of(part.rank)) + part.at, part.bytes);
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

  /// The leader shows what came; all take the blocks of other nodes' ranks.
  void hand_round(std::size_t segment, const FrameGrid::Cut& range) {
    if (speaks_)
      c_.write(c_.open(range.bytes), room(segment).subspan(range.begin - grid_.segment(segment).begin, range.bytes));
    else
      c_.open_unwritten();
    c_.publish();
    frames_.visit(segment, range, [&](const Part& part) {
      if (is_near(part)) return;
      c_.await(speaker(0));
      copy_lines(memory(part), c_.slot(speaker(0)) + part.at, part.bytes);
    });
  }

  const std::vector<Bytes>& outs_;
  const BlockFrames& frames_;
  const int node_;
  std::optional<WireReduction> wire_;
};

/// Every rank exchanges its block with its like on the other nodes, in pieces: while the wire carries some, the node
/// hands round others.
class GatherByLikes {
 public:
  GatherByLikes(Context& c, const std::vector<Bytes>& outs)
      : c_(c), outs_(outs), piece_bytes_(exchange_piece_bytes(c.shape().slot_bytes, c.topology().nodes() - 1)) {
    for (const Bytes& out : outs) longest_ = std::max(longest_, out.size()), total_ += out.size();
  }

  void run() {
    const int nodes = c_.topology().nodes(), me = c_.topology().node(), local = c_.local_rank();
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing;
    for (int step = 1; step < nodes; ++step) {  // the next node first, so that not all send to the same one
      incoming.push_back({like((me + nodes - step) % nodes, local), outs_[like((me + nodes - step) % nodes, local)]});
      outgoing.push_back({like((me + step) % nodes, local), outs_[c_.topology().rank()]});
    }
    PiecewiseExchange blocks(c_, std::move(incoming), std::move(outgoing), piece_bytes_);
    for (std::size_t round = 0; round * piece_bytes_ < longest_; ++round) {
      hand_round(me, round * piece_bytes_);
      blocks.await_round();
      for (int step = 1; step < nodes; ++step) hand_round((me + nodes - step) % nodes, round * piece_bytes_);
    }
  }

 private:
  int like(int node, int local) const { return c_.topology().members(node)[local]; }
  Bytes piece(int node, int local, std::size_t at) const {
    const Bytes block = outs_[like(node, local)];
    const std::size_t begin = std::min(at, block.size());
    return block.subspan(begin, std::min(piece_bytes_, block.size() - begin));
  }

  /// Each rank of this node shows its piece of its like on `node`, and takes the others'.
  void hand_round(int node, std::size_t at) {
    if (c_.local_size() == 1) return;
    const Bytes mine = piece(node, c_.local_rank(), at);
    c_.write(c_.open(mine.size()), mine);
    c_.publish();
    for (int local = 0; local < c_.local_size(); ++local) {
      const Bytes theirs = piece(node, local, at);
      if (local == c_.local_rank() || theirs.empty()) continue;
      c_.await(local);
      copy_out(theirs.data(), c_.slot(local), theirs.size(), is_past_own_caches(total_));
    }
  }

  Context& c_;
  const std::vector<Bytes>& outs_;
  const std::size_t piece_bytes_;
  std::size_t longest_ = 0, total_ = 0;
};

}  // namespace

void allgather(Context& c, ConstBytes in, const std::vector<Bytes>& outs) {
  const Topology& t = c.topology();
  if (t.nodes() == 1 && t.size() > 1) {
    c.note({"chunks", 1, std::min(in.size(), c.slot_bytes())});
    if (!is_in_the_way(in, outs, t.rank())) return allgather_on_node(c, in, outs);
    copy(outs[t.rank()], in);
    return allgather_on_node(c, outs[t.rank()], outs);
  }
  if (t.nodes() > 1) {
    std::size_t carried = 0;
    for (int node = 0; node < t.nodes(); ++node) carried = std::max(carried, bytes_of_node(t, node, outs));
    if (!c.has_met() && allgathers_with_signatures(carried, total_of(outs), c.shape()))
      return allgather_with_signatures(c, in, outs);
    c.meet();
  }
  copy(outs[t.rank()], in);
  if (t.size() == 1) return c.note({"alone"});
  if (gathers_by_likes(total_of(outs), c.shape(), c.machine())) {
    const int k = c.local_size();
    const std::size_t piece = exchange_piece_bytes(c.shape().slot_bytes, t.nodes() - 1);
    c.note({k == 1 ? "pairs" : "lanes", k, std::min(in.size(), piece)});
    if (k > 1) c.meet();  // ranks that do not lead must not send before signatures are compared
    return GatherByLikes(c, outs).run();
  }
  const BlockFrames frames = frames_of(c, outs, 1);
  c.note({"leaders", 1, frames.grid().largest()});
  GatherPipeline(c, outs, frames).run();
}

}  // namespace accdp
