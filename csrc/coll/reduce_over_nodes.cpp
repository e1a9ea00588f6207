// Reduction of long messages over several nodes: segments in a pipeline. While the wire carries some, the node works
// on others. Phases of a segment:
//   1. on the node, one lane: it is reduced to the leader (reduce_on_node); several lanes: each rank hands every
//      other rank the slice of that one's lane and reduces its own (1 step);
//   2. between nodes: wire_reduction.hpp, by the leaders or by all ranks, each for its lane;
//   3. on the node: broadcast from the leader, or each rank hands round its slice (1 step).
// All ranks get the same bits: each element is reduced on a node by one rank, over nodes by one rank, in order.
// Cost: 2*S*(nodes-1)/nodes bytes out of and into each node; 3*ceil(S/c) steps beside them, 2*ceil(S/c) with lanes.
#include <algorithm>
#include <optional>

#include "coll/algorithms.hpp"
#include "coll/segment_pipeline.hpp"
#include "node/copies.hpp"

namespace accdp {
namespace {

/// `bytes` from one rank of the node to another; the others, whose `data` is not looked at, keep step.
void hand_over(Context& c, std::byte* data, std::size_t bytes, int source, int target) {
  for (std::size_t at = 0; at < bytes; at += c.slot_bytes()) {
    const std::size_t n = std::min(c.slot_bytes(), bytes - at);
    if (c.local_rank() == source) {
      c.write(c.open(n), {data + at, n}, target);
      c.publish();
      continue;
    }
    c.open_unwritten();
    c.publish();
    if (c.local_rank() != target) continue;
    c.await(source);
    copy_lines(data + at, c.slot(source), n);
  }
}

class Pipeline : SegmentPipeline {
 public:
  Pipeline(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver, const FrameGrid& grid,
           FrameCodec* codec)
      : SegmentPipeline(c, grid, codec ? kAheadEncoded : kAhead), in_(in), out_(out), how_(how), receiver_(receiver) {
    const int wanted_on = receiver < 0 ? -1 : c.topology().node_of(receiver);
    if (speaks_) wire_.emplace(c, grid, lane(), how, wanted_on, ahead_, codec);
  }

  void run() {
    SegmentPipeline::run([&](std::size_t i) { begin(i); }, [&](std::size_t i) { end(i); });
  }

 private:
  bool has_result() const { return receiver_ < 0 || receiver_ == c_.topology().rank(); }

  /// Where this rank works on the segment; elsewhere than in its result where it has none.
  Bytes place(std::size_t segment) {
    const FrameGrid::Cut cut = grid_.segment(segment);
    return has_result() ? out_.subspan(cut.begin, cut.bytes) : room(segment);
  }

  void begin(std::size_t segment) {
    const FrameGrid::Cut cut = grid_.segment(segment);
    if (grid_.lanes() > 1)
      reduce_own_slice(segment);
    else
      reduce_on_node(c_, in_.subspan(cut.begin, cut.bytes), speaks_ ? place(segment) : Bytes(), how_.partial(),
                     c_.topology().local_of(leader_));
    if (speaks_) wire_->start(segment, place(segment));
  }

  void end(std::size_t segment) {
    if (speaks_) wire_->finish(segment);
    const Topology& t = c_.topology();
    if (grid_.lanes() > 1)
      hand_round(segment);
    else if (receiver_ < 0)
      bcast_on_node(c_, {place(segment)}, t.local_of(leader_), in_.size());
    else if (t.is_near(receiver_) && receiver_ != leader_)
      hand_over(c_, speaks_ || has_result() ? place(segment).data() : nullptr, grid_.segment(segment).bytes,
                t.local_of(leader_), t.local_of(receiver_));
  }

  void reduce_own_slice(std::size_t segment) {
    const auto [begin, bytes] = grid_.segment(segment);
    std::byte* slot = c_.open(bytes);
    for (int other = 0; other < grid_.lanes(); ++other) {
      const FrameGrid::Cut cut = grid_.lane(segment, other);
      if (other != lane()) c_.write(slot + (cut.begin - begin), in_.subspan(cut.begin, cut.bytes), other);
    }
    c_.publish();
    c_.await_all();
    const FrameGrid::Cut mine = grid_.lane(segment, lane());
    std::vector<const void*> sources;
    for (int rank = 0; rank < c_.local_size(); ++rank)
      sources.push_back(rank == lane() ? in_.data() + mine.begin : c_.slot(rank) + (mine.begin - begin));
    if (mine.bytes) reduce(out_.data() + mine.begin, sources, mine.bytes / element_bytes(how_.type), how_.partial());
  }

  void hand_round(std::size_t segment) {
    const auto [begin, bytes] = grid_.segment(segment);
    const FrameGrid::Cut mine = grid_.lane(segment, lane());
    std::byte* slot = c_.open(bytes);
    c_.write(slot + (mine.begin - begin), out_.subspan(mine.begin, mine.bytes));
    c_.publish();
    c_.await_all();
    for (int other = 0; other < grid_.lanes(); ++other) {
      const FrameGrid::Cut cut = grid_.lane(segment, other);
      if (other != lane()) copy_lines(out_.data() + cut.begin, c_.slot(other) + (cut.begin - begin), cut.bytes);
    }
  }

  ConstBytes in_;
  Bytes out_;
  const Reduction how_;
  const int receiver_;
  std::optional<WireReduction> wire_;
};

/// Phase 2 alone.
class WirePipeline : SegmentPipeline {
 public:
  WirePipeline(Context& c, Bytes data, const Reduction& how, const FrameGrid& grid, FrameCodec* codec,
               WireReduction::Workplace& workplace)
      : SegmentPipeline(c, grid, codec ? kAheadEncoded : kAhead),
        data_(data),
        wire_(c, grid, lane(), how, -1, ahead_, codec, WireReduction::Part::kBoth, &workplace) {}

  void run() {
    const auto begin = [&](std::size_t i) {
      const FrameGrid::Cut cut = grid_.segment(i);
      wire_.start(i, data_.subspan(cut.begin, cut.bytes));
    };
    SegmentPipeline::run(begin, [&](std::size_t i) { wire_.finish(i); });
  }

 private:
  const Bytes data_;
  WireReduction wire_;
};

}  // namespace

void reduce_over_nodes(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver, int lanes) {
  const std::size_t frame = frame_bytes_for(in.size(), c.shape(), lanes);
  c.note({name_of(ReduceAlgorithm::kPipeline), lanes, std::min(in.size(), frame)});
  reduce_frames(c, in, out, how, receiver, FrameGrid::even(in.size(), frame, c.shape().nodes, lanes), nullptr);
}

void reduce_frames(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver, const FrameGrid& grid,
                   FrameCodec* codec) {
  // Ranks that do not lead must not send before the leaders have compared signatures.
  if (grid.lanes() > 1) c.meet();
  Pipeline(c, in, out, how, receiver, grid, codec).run();
}

void reduce_frames_between_nodes(Context& c, Bytes data, const Reduction& how, const FrameGrid& grid, FrameCodec* codec,
                                 WireReduction::Workplace& workplace) {
  if (grid.lanes() > 1) c.meet();
  if (grid.lanes() > 1 || c.topology().is_leader()) WirePipeline(c, data, how, grid, codec, workplace).run();
}

}  // namespace accdp
