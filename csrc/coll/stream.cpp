#include "coll/stream.hpp"

#include <algorithm>

#include "base/hash.hpp"
#include "codec/frame.hpp"

namespace accdp {
namespace {

// With it a frame of half a slot fits into the slot, head and records included, however small the slot is.
constexpr std::size_t kChunksPerFrame = 32;

/// Whether a chunk that began with one piece may go on with another. Lossy tensors have a bound of their own.
bool continues(const Piece& a, const Piece& b) {
  return a.type == b.type && !a.lossy && !b.lossy && a.reference.empty() == b.reference.empty();
}

template <class Span, class Memory>
std::vector<Span> walk(const std::vector<Piece>& pieces, const StreamPlan::Chunk& chunk, Memory memory) {
  std::vector<Span> spans;
  std::size_t left = chunk.bytes, offset = chunk.offset;
  for (std::size_t i = chunk.piece; left > 0; ++i, offset = 0) {
    const std::size_t n = std::min(left, pieces[i].data.size() - offset);
    if (n) spans.push_back(memory(pieces[i]).subspan(offset, n));
    left -= n;
  }
  return spans;
}

}  // namespace

StreamPlan::StreamPlan(const std::vector<Piece>& pieces, std::size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::size_t size = pieces[i].data.size();
    bytes_ += size;
    std::size_t at = 0;
    // Pieces without elements are in no chunk: the one before may be of another kind than the last chunk.
    const bool joins = !chunks_.empty() && continues(pieces[chunks_.back().piece], pieces[i]);
    if (joins && chunks_.back().bytes < chunk_bytes) {
      at = std::min(size, chunk_bytes - chunks_.back().bytes);
      chunks_.back().bytes += at;
    }
    for (; at < size; at += chunk_bytes) chunks_.push_back({i, at, std::min(chunk_bytes, size - at)});
  }
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const bool fits = !frames_.empty() && frames_.back().bytes + chunks_[i].bytes <= chunk_bytes &&
                      frames_.back().chunks < kChunksPerFrame;
    if (!fits) frames_.push_back({i, 0, 0});
    ++frames_.back().chunks;
    frames_.back().bytes += chunks_[i].bytes;
  }
  if (frames_.empty()) frames_.push_back({0, 0, 0});
  for (const Frame& frame : frames_) room_ = std::max(room_, frame_room(frame.bytes, frame.chunks));
}

std::size_t total_bytes(const std::vector<Piece>& pieces) { return total_bytes(spans_of(pieces)); }

std::vector<Bytes> spans_of(const std::vector<Piece>& pieces) {
  std::vector<Bytes> spans;
  for (const Piece& piece : pieces) spans.push_back(piece.data);
  return spans;
}

std::vector<Bytes> spans_of(const std::vector<Piece>& pieces, const StreamPlan::Chunk& chunk) {
  return walk<Bytes>(pieces, chunk, [](const Piece& piece) { return piece.data; });
}

std::vector<ConstBytes> references_of(const std::vector<Piece>& pieces, const StreamPlan::Chunk& chunk) {
  return walk<ConstBytes>(pieces, chunk, [](const Piece& piece) { return piece.reference; });
}

std::uint64_t layout_of(const std::vector<Piece>& pieces) noexcept {
  Hash layout;
  for (const Piece& piece : pieces)
    layout.add({piece.data.size(), static_cast<std::uint64_t>(piece.type) | std::uint64_t{piece.lossy} << 8 |
                                       std::uint64_t{!piece.reference.empty()} << 9});
  return layout.value();
}

}  // namespace accdp
