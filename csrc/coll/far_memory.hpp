#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "codec/codec.hpp"
#include "coll/stream.hpp"

namespace accdp {

/// Tensors on a device, seen by those who know no CUDA: each has host memory of its size that stands for it, and that
/// is filled only where it is asked for. Spans are of that host memory. One thread at a time.
class FarMemory {
 public:
  virtual ~FarMemory() = default;
  /// Whether all of a span stands for memory of the device.
  virtual bool holds(ConstBytes host) const = 0;
  /// Whether the device encodes and decodes so.
  virtual bool has(const CodecRow& codec, Datatype type) const = 0;
  /// Host memory gets what the device has; waits. What does not stand for memory of a device is there already.
  virtual void fetch(ConstBytes host) = 0;

  struct Chunk {
    ConstBytes host;
    const CodecRow* codec;
    Encoding how;
  };
  static constexpr std::size_t kMostChunks = 32;
  /// Begins to encode up to kMostChunks chunks, and does not wait. Two of these may be under way: a third takes the
  /// place of the first.
  virtual std::size_t begin_encode(const std::vector<Chunk>& chunks) = 0;
  /// Of such a beginning: the encoded bytes of each chunk; empty: it did not become smaller. Waits.
  virtual const std::vector<ConstBytes>& encoded(std::size_t beginning) = 0;
  /// The tensor gets what an encoded chunk stands for, when finish() is called at the latest; the host memory does not.
  /// `stored` may change afterwards.
  virtual void decode(const CodecRow& codec, Datatype type, ConstBytes stored, Bytes host) = 0;
  /// Waits for all chunks that are decoded. Throws CodecError where one was no chunk of its codec.
  virtual void finish() = 0;
};

void fetch_all(FarMemory& far, const std::vector<Piece>& pieces);

/// A root's frames, encoded on a device ahead of their turn: while one run of frames is copied to the host and sent,
/// the next is encoded.
class FarFrames {
 public:
  using CodecFor = std::function<const CodecRow*(const Piece&)>;  ///< null: the piece goes as it is
  FarFrames(FarMemory& far, const std::vector<Piece>& pieces, const StreamPlan& plan, CodecFor codec_for);

  struct Encoded {
    const CodecRow* codec;
    ConstBytes stored;  ///< empty: the chunk did not become smaller
  };
  /// Of every chunk of a frame; none where it has to be encoded in the host. Valid until the next call.
  std::vector<std::optional<Encoded>> take(std::size_t frame);

 private:
  struct Run {
    std::size_t first = 0, end = 0;  // frames
    std::size_t beginning = 0;
    std::vector<const CodecRow*> codecs;  // of its chunks, null: in the host
    std::size_t first_chunk = 0;
    bool has(std::size_t frame) const { return first <= frame && frame < end; }
  };
  void begin(Run& run, std::size_t frame);

  FarMemory& far_;
  const std::vector<Piece>& pieces_;
  const StreamPlan& plan_;
  CodecFor codec_for_;
  Run runs_[2];
  std::size_t latest_ = 0;  // of the two
};

}  // namespace accdp
