#pragma once
#include <algorithm>
#include <vector>

#include "coll/algorithms.hpp"
#include "coll/wire_reduction.hpp"

namespace accdp {

/// How the blocks of all ranks are cut for a pipeline over nodes. A node's blocks one after the other are its stream;
/// each frame of the grid is a piece of its node's stream, in order of segments and, in them, of lanes. Streams of
/// different length end with the same segment. Pure arithmetic.
class BlockFrames {
 public:
  /// Segments of about `segment_bytes`, at most that where it has room for a line per frame.
  BlockFrames(const Topology& topology, const std::vector<std::size_t>& block_bytes, std::size_t segment_bytes,
              int lanes);

  const FrameGrid& grid() const { return grid_; }

  /// A part of a block. at: from the begin of what was asked for.
  struct Part {
    int rank, lane;
    std::size_t offset, bytes;  ///< in the block
    std::size_t at;
  };
  /// The parts of blocks in `range` of the grid, which is within one segment, in order.
  template <class Visit>
  void visit(std::size_t segment, const FrameGrid::Cut& range, Visit visit) const {
    for (int lane = 0; lane < grid_.lanes(); ++lane)
      for (int node = 0; node < grid_.nodes(); ++node) {
        const std::size_t frame = grid_.frame(segment, lane, node);
        if (frame == FrameGrid::kNone) continue;
        const FrameGrid::Cut cut = grid_.cut(frame), common = overlap(cut, range);
        if (common.bytes == 0) continue;
        const std::size_t begin = stream_at(segment, lane, node) + (common.begin - cut.begin);
        walk(node, lane, begin, common.bytes, common.begin - range.begin, visit);
      }
  }
  /// What a segment has of a node's stream, and the parts of blocks in some of it; their lane is 0.
  FrameGrid::Cut stream(std::size_t segment, int node) const;
  template <class Visit>
  void visit_stream(int node, const FrameGrid::Cut& range, Visit visit) const {
    walk(node, 0, range.begin, range.bytes, 0, visit);
  }

  static FrameGrid::Cut overlap(const FrameGrid::Cut& a, const FrameGrid::Cut& b) {
    const std::size_t begin = std::max(a.begin, b.begin), end = std::min(a.begin + a.bytes, b.begin + b.bytes);
    return {begin, end > begin ? end - begin : 0};
  }

 private:
  struct Stream {
    std::vector<int> ranks;
    std::vector<std::size_t> begins;  // and the end of the last
    std::size_t frame_bytes;
  };
  static std::vector<Stream> streams_of(const Topology& topology, const std::vector<std::size_t>& block_bytes,
                                        std::size_t segment_bytes, int lanes);
  static FrameGrid grid_of(const std::vector<Stream>& streams, int lanes);

  std::size_t stream_at(std::size_t segment, int lane, int node) const {
    return (segment * grid_.lanes() + lane) * streams_[node].frame_bytes;
  }
  template <class Visit>
  void walk(int node, int lane, std::size_t begin, std::size_t bytes, std::size_t at, Visit& visit) const {
    const Stream& stream = streams_[node];
    auto last = std::upper_bound(stream.begins.begin(), stream.begins.end(), begin);
    for (std::size_t i = last - stream.begins.begin() - 1; bytes > 0; ++i) {
      const std::size_t n = std::min(bytes, stream.begins[i + 1] - begin);
      if (n) visit(Part{stream.ranks[i], lane, begin - stream.begins[i], n, at});
      begin += n;
      at += n;
      bytes -= n;
    }
  }

  std::vector<Stream> streams_;  // by node
  FrameGrid grid_;
};

/// Bytes of a segment: as long as a slot, unless that made the frames of many nodes too short.
std::size_t block_segment_bytes(const Shape& shape, int lanes);
/// How a grid cuts the streams, by lengths alone: of each frame the bytes, for segments of at most `segment_bytes`.
std::size_t stream_frame_bytes(std::size_t stream_bytes, std::size_t total_bytes, std::size_t segment_bytes, int nodes,
                               int lanes);

template <class Block>
BlockFrames frames_of(const Context& c, const std::vector<Block>& blocks, int lanes) {
  std::vector<std::size_t> bytes;
  for (const Block& block : blocks) bytes.push_back(block.size());
  return BlockFrames(c.topology(), bytes, block_segment_bytes(c.shape(), lanes), lanes);
}

}  // namespace accdp
