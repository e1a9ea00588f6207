#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace accdp {

/// One tensor of a broadcast stream: contiguous memory of one datatype.
struct Piece {
  Bytes data;
  Datatype type = Datatype::kBytes;
  ConstBytes reference = {};  ///< what every rank holds already, as many bytes as data; empty: nothing
  bool lossy = false;         ///< a float tensor that may arrive changed, by up to `bound`
  double bound = 0;           ///< root only; 0: this tensor stays exact
};

/// A smaller tensor is not lossy whatever the bound: its chunk's record and padding would take more than encoding
/// saves.
constexpr std::size_t kSmallestLossy = 128;

/// How far lossy tensors may be off: |x - x'| <= value, or <= value times the tensor's standard deviation. 0: not at
/// all.
struct ErrorBound {
  double value = 0;
  bool is_relative = false;
};

/// How a stream is cut. Chunks are encoded one by one; a frame, which is one message, is a run of chunks of at most
/// chunk_bytes together, so that many small tensors share one. The same on every rank. Pure arithmetic.
class StreamPlan {
 public:
  struct Chunk {
    std::size_t piece, offset;  ///< where it begins; it may run on into pieces that could have been one with it
    std::size_t bytes;
  };
  struct Frame {
    std::size_t first, chunks, bytes;
  };

  StreamPlan(const std::vector<Piece>& pieces, std::size_t chunk_bytes);

  std::size_t bytes() const { return bytes_; }
  std::size_t chunk_bytes() const { return chunk_bytes_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  const std::vector<Frame>& frames() const { return frames_; }  ///< one at least
  std::size_t room() const { return room_; }                    ///< that the largest frame can take up encoded

 private:
  std::size_t bytes_ = 0, chunk_bytes_, room_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<Frame> frames_;
};

std::size_t total_bytes(const std::vector<Piece>& pieces);
std::vector<Bytes> spans_of(const std::vector<Piece>& pieces);

/// The memory of a chunk: one span, or several where it runs over several pieces.
std::vector<Bytes> spans_of(const std::vector<Piece>& pieces, const StreamPlan::Chunk& chunk);
std::vector<ConstBytes> references_of(const std::vector<Piece>& pieces, const StreamPlan::Chunk& chunk);

/// Hash of what all ranks must give alike: sizes, datatypes, which tensors may be lossy or have a reference.
std::uint64_t layout_of(const std::vector<Piece>& pieces) noexcept;

}  // namespace accdp
