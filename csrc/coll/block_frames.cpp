#include "coll/block_frames.hpp"

#include <cstdint>
#include <numeric>

#include "base/rounding.hpp"

namespace accdp {

std::size_t stream_frame_bytes(std::size_t stream_bytes, std::size_t total_bytes, std::size_t segment_bytes, int nodes,
                               int lanes) {
  // Frames are whole lines, which makes segments longer by up to a line per frame.
  const std::size_t rounding = kLine * nodes * lanes;
  const std::size_t most = segment_bytes > 2 * rounding ? segment_bytes - rounding : segment_bytes;
  const std::size_t pieces = lanes * std::max<std::size_t>(ceil_div(total_bytes, most), 1);
  return (ceil_div(stream_bytes, pieces) / kLine + 1) * kLine;
}

std::size_t block_segment_bytes(const Shape& shape, int lanes) {
  return frame_bytes_for(SIZE_MAX / 2, shape, lanes) * shape.nodes * lanes;
}

std::vector<BlockFrames::Stream> BlockFrames::streams_of(const Topology& t, const std::vector<std::size_t>& block_bytes,
                                                         std::size_t segment_bytes, int lanes) {
  std::vector<Stream> streams(t.nodes());
  std::size_t total = 0;
  for (int node = 0; node < t.nodes(); ++node) {
    Stream& stream = streams[node];
    stream.ranks = t.members(node);
    stream.begins.push_back(0);
    for (int rank : stream.ranks) stream.begins.push_back(stream.begins.back() + block_bytes[rank]);
    total += stream.begins.back();
  }
  for (Stream& stream : streams)
    stream.frame_bytes = stream_frame_bytes(stream.begins.back(), total, segment_bytes, t.nodes(), lanes);
  return streams;
}

FrameGrid BlockFrames::grid_of(const std::vector<Stream>& streams, int lanes) {
  std::size_t pieces = 0;
  for (const Stream& stream : streams) pieces = std::max(pieces, ceil_div(stream.begins.back(), stream.frame_bytes));
  std::vector<std::size_t> frames;
  frames.reserve(pieces * streams.size());
  for (std::size_t piece = 0; piece < pieces; ++piece)
    for (const Stream& stream : streams) {
      const std::size_t begin = std::min(stream.begins.back(), piece * stream.frame_bytes);
      frames.push_back(std::min(stream.frame_bytes, stream.begins.back() - begin));
    }
  return FrameGrid(std::move(frames), static_cast<int>(streams.size()), lanes);
}

BlockFrames::BlockFrames(const Topology& topology, const std::vector<std::size_t>& block_bytes,
                         std::size_t segment_bytes, int lanes)
    : streams_(streams_of(topology, block_bytes, segment_bytes, lanes)), grid_(grid_of(streams_, lanes)) {}

FrameGrid::Cut BlockFrames::stream(std::size_t segment, int node) const {
  const std::size_t end = streams_[node].begins.back();
  const std::size_t from = std::min(end, stream_at(segment, 0, node));
  return {from, std::min(end, stream_at(segment + 1, 0, node)) - from};
}

}  // namespace accdp
