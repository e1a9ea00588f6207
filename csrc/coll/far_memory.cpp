#include "coll/far_memory.hpp"

#include <utility>

namespace accdp {
namespace {

constexpr std::size_t kRunBytes = 4 << 20;  // enough to keep a GPU busy, little enough to be under way soon

}  // namespace

void fetch_all(FarMemory& far, const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) far.fetch(piece.data);
}

FarFrames::FarFrames(FarMemory& far, const std::vector<Piece>& pieces, const StreamPlan& plan, CodecFor codec_for)
    : far_(far), pieces_(pieces), plan_(plan), codec_for_(std::move(codec_for)) {}

void FarFrames::begin(Run& run, std::size_t frame) {
  run = Run();
  run.first = run.end = frame;
  run.first_chunk = plan_.frames()[frame].first;
  std::vector<FarMemory::Chunk> chunks;
  std::size_t bytes = 0;
  for (; run.end < plan_.frames().size(); ++run.end) {
    const StreamPlan::Frame& f = plan_.frames()[run.end];
    const bool fits = bytes + f.bytes <= kRunBytes && chunks.size() + f.chunks <= FarMemory::kMostChunks;
    if (run.end > frame && !fits) break;
    bytes += f.bytes;
    for (std::size_t i = f.first; i < f.first + f.chunks; ++i) {
      const StreamPlan::Chunk& chunk = plan_.chunks()[i];
      const Piece& piece = pieces_[chunk.piece];
      const std::vector<Bytes> spans = spans_of(pieces_, chunk);
      const CodecRow* codec = piece.reference.empty() && spans.size() == 1 ? codec_for_(piece) : nullptr;
      if (codec && !(far_.has(*codec, piece.type) && far_.holds(spans[0]))) codec = nullptr;
      run.codecs.push_back(codec);
      if (codec) chunks.push_back({spans[0], codec, {piece.type, piece.bound}});
    }
  }
  run.beginning = far_.begin_encode(chunks);
}

std::vector<std::optional<FarFrames::Encoded>> FarFrames::take(std::size_t frame) {
  if (!runs_[latest_].has(frame) && !runs_[1 - latest_].has(frame)) {  // the first, or out of turn
    latest_ = 1 - latest_;
    begin(runs_[latest_], frame);
  }
  const std::size_t mine = runs_[latest_].has(frame) ? latest_ : 1 - latest_;
  const std::size_t next = runs_[mine].end;
  if (mine == latest_ && next < plan_.frames().size()) {
    latest_ = 1 - latest_;
    begin(runs_[latest_], next);
  }
  const Run& run = runs_[mine];
  const std::vector<ConstBytes>& stored = far_.encoded(run.beginning);
  const StreamPlan::Frame& f = plan_.frames()[frame];
  std::vector<std::optional<Encoded>> chunks(f.chunks);
  std::size_t number = 0;
  for (std::size_t i = 0; i < run.codecs.size(); ++i) {
    if (!run.codecs[i]) continue;
    const std::size_t chunk = run.first_chunk + i;
    if (chunk >= f.first && chunk < f.first + f.chunks) chunks[chunk - f.first] = {run.codecs[i], stored[number]};
    ++number;
  }
  return chunks;
}

}  // namespace accdp
