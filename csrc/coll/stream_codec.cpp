#include "coll/stream_codec.hpp"

#include <algorithm>
#include <cstring>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/settings.hpp"
#include "codec/delta.hpp"

namespace accdp {
namespace {

/// Adds the time until its end to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& sum) : sum_(sum) {}
  ~Stopwatch() { sum_ += seconds_since(began_); }
  Stopwatch(const Stopwatch&) = delete;

 private:
  double& sum_;
  Clock::time_point began_ = Clock::now();
};

}  // namespace

StreamOptions stream_options(const std::string& codec, std::size_t chunk_bytes, const std::string& algorithm,
                             ErrorBound bound, std::uint64_t label) {
  StreamOptions options{.chunk_bytes = chunk_bytes, .bound = bound, .label = label};
  options.automatic = codec == "auto";
  if (codec != "auto" && codec != "none") options.codec = &codec_named(codec);
  if (chunk_bytes && !is_codec_chunk(static_cast<std::int64_t>(chunk_bytes)))
    throw UsageError("chunk_bytes=" + std::to_string(chunk_bytes) + ": expected 4096 to 16777216, a multiple of 4096");
  if (!algorithm.empty()) options.algorithm = bcast_algorithm_named(algorithm);
  return options;
}

std::string in_words(const std::vector<Piece>& pieces, const StreamOptions& options) {
  constexpr std::size_t kMostNamed = 4;
  char digits[32];
  std::string text = std::string("codec ") + (options.automatic ? "auto"
                                              : options.codec   ? options.codec->name
                                                                : "none");
  text += ", chunks of " + std::to_string(options.chunk_bytes) + " bytes";
  if (options.algorithm.value_or(BcastAlgorithm::kAuto) != BcastAlgorithm::kAuto)
    text += std::string(", algorithm ") + name_of(*options.algorithm);
  std::snprintf(digits, sizeof digits, "%.9g", options.bound.value);
  text += options.bound.value > 0 ? std::string(", error bound ") + digits : ", no error bound";
  if (options.bound.is_relative) text += " of the standard deviation";
  if (options.root_takes_decoded) text += ", which root takes as the others do";
  text += "; tensors:";
  for (std::size_t i = 0; i < std::min(pieces.size(), kMostNamed); ++i) {
    text += std::string(i ? ", " : " ") + std::to_string(pieces[i].data.size() / element_bytes(pieces[i].type)) + " " +
            name_of(pieces[i].type);
    if (!pieces[i].reference.empty()) text += " with a reference";
  }
  std::size_t more = 0;
  for (std::size_t i = kMostNamed; i < pieces.size(); ++i) more += pieces[i].data.size();
  if (pieces.size() > kMostNamed)
    text += " and " + std::to_string(pieces.size() - kMostNamed) + " more of " + std::to_string(more) + " bytes";
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(options.label));
  if (options.label) text += std::string(", their names and memory formats ") + digits;
  return text;
}

StreamCodec::StreamCodec(const Signature& call, const std::vector<Piece>& pieces, const StreamPlan& plan,
                         const StreamOptions& options, StreamReport& report)
    : pieces_(pieces),
      plan_(plan),
      options_(options),
      call_(call),
      report_(report),
      chooser_(pieces, plan, options),
      named_(options.codec),
      on_device_(options.on_device) {
  if (on_device_)
    device_frames_.emplace(*on_device_, pieces_, plan_, [this](const Piece& piece) { return codec_for(piece); });
}

void StreamCodec::encode_in_order(std::vector<std::size_t> frames) {
  if (device_frames_) device_frames_->in_order(std::move(frames));
}

void StreamCodec::stay_on_host() {
  device_frames_.reset();
  on_device_ = nullptr;
}

void StreamCodec::fetch(const StreamPlan::Chunk& chunk) {
  if (!on_device_) return;
  const std::vector<Bytes> spans = spans_of(pieces_, chunk);
  std::vector<ConstBytes> wanted(spans.begin(), spans.end());
  if (!pieces_[chunk.piece].reference.empty())
    for (const ConstBytes& span : references_of(pieces_, chunk)) wanted.push_back(span);
  on_device_->fetch(wanted);
}

void StreamCodec::fetch() {
  if (on_device_) fetch_all(*on_device_, pieces_);
}

void StreamCodec::fetch(std::size_t frame) {
  const StreamPlan::Frame& f = plan_.frames()[frame];
  for (std::size_t i = f.first; i < f.first + f.chunks; ++i) fetch(plan_.chunks()[i]);
}

void StreamCodec::fetch_decoded(std::size_t frame) {
  on_device_->finish();
  const StreamPlan::Frame& f = plan_.frames()[frame];
  std::vector<ConstBytes> wanted;
  for (std::size_t i = f.first; i < f.first + f.chunks; ++i)
    for (const Bytes& span : spans_of(pieces_, plan_.chunks()[i])) wanted.push_back(span);
  on_device_->fetch(wanted);
}

bool StreamCodec::is_for_device() const {
  return on_device_ && std::all_of(pieces_.begin(), pieces_.end(), [&](const Piece& piece) {
           const Datatype type = piece.reference.empty() ? piece.type : delta_type(piece.type);
           const CodecRow* codec = codec_for(piece);
           return codec && on_device_->has(*codec, type) && on_device_->holds(piece.data) &&
                  on_device_->holds(piece.reference);
         });
}

const CodecRow* StreamCodec::codec_for(const Piece& piece) const {
  const PieceClass which = class_of(piece);
  if (options_.automatic) {
    auto found = chosen_.find(which);
    return found == chosen_.end() ? nullptr : found->second;
  }
  const Datatype type = which.delta ? delta_type(which.type) : which.type;
  return named_ && named_->takes(type) && (!named_->lossy || which.lossy) ? named_ : nullptr;
}

bool StreamCodec::encodes() const {
  return std::any_of(pieces_.begin(), pieces_.end(), [&](const Piece& piece) { return codec_for(piece) != nullptr; });
}

void StreamCodec::choose(std::size_t first_frame, const Journey& journey, Experiences* known) {
  if (options_.automatic && journey.bytes >= kTooSmall) chosen_ = chooser_.choose(first_frame, journey, known);
}

double StreamCodec::ratio() const {
  const double sent = static_cast<double>(std::max<std::uint64_t>(report_.wire_bytes, 1));
  return static_cast<double>(report_.logical_bytes) / sent;
}

ConstBytes StreamCodec::joined(const std::vector<ConstBytes>& spans, std::vector<std::byte>& room) {
  if (spans.size() == 1) return spans[0];
  room.clear();
  for (const ConstBytes& span : spans) room.insert(room.end(), span.begin(), span.end());
  return room;
}

ConstBytes StreamCodec::encode(std::size_t frame, Bytes room) {
  Stopwatch watch(report_.encode_s);
  const StreamPlan::Frame& f = plan_.frames()[frame];
  FrameWriter writer(room, f.chunks);
  last_codecs_.clear();
  last_on_device_.assign(f.chunks, std::nullopt);
  if (device_frames_ && encodes()) last_on_device_ = device_frames_->take(frame);
  for (std::size_t i = f.first; i < f.first + f.chunks; ++i) {
    const StreamPlan::Chunk& chunk = plan_.chunks()[i];
    const Piece& piece = pieces_[chunk.piece];
    const std::uint8_t flags = piece.reference.empty() ? 0 : ChunkRecord::kDelta;
    const auto& on_device = last_on_device_[i - f.first];
    if (on_device && !on_device->stored.empty()) {
      writer.add_encoded(*on_device->codec, chunk.bytes, on_device->stored, flags);
      encoded_bytes_[on_device->codec->id] += chunk.bytes;
      device_bytes_ += chunk.bytes;
      last_codecs_.push_back(on_device->codec);
      continue;
    }
    const CodecRow* chosen = codec_for(piece);
    const CodecRow* codec = on_device ? nullptr : chosen;  // did not become smaller there
    fetch(chunk);
    const std::vector<Bytes> spans = spans_of(pieces_, chunk);
    ConstBytes raw = joined({spans.begin(), spans.end()}, gathered_);
    bool encoded;
    if (chosen && flags) {
      delta_.resize(raw.size());
      delta_encode(piece.type, raw, joined(references_of(pieces_, chunk), old_), delta_);
      encoded = writer.add(codec, {delta_type(piece.type)}, delta_, flags);
    } else {
      encoded = writer.add(codec, {piece.type, piece.bound}, raw);
    }
    if (encoded) encoded_bytes_[codec->id] += raw.size();
    last_codecs_.push_back(encoded ? codec : nullptr);
  }
  FrameHead head;
  head.collective = call_.kind;
  head.sequence = call_.sequence;
  head.stream_bytes = plan_.bytes();
  head.reference = call_.check;
  head.first_chunk = f.first;
  head.chunk_bytes = static_cast<std::uint32_t>(plan_.chunk_bytes());
  return writer.finish(head);
}

FrameReader StreamCodec::read(std::size_t frame, ConstBytes message) const {
  const StreamPlan::Frame& f = plan_.frames()[frame];
  std::vector<ChunkExpectation> chunks;
  for (std::size_t i = f.first; i < f.first + f.chunks; ++i) {
    const StreamPlan::Chunk& chunk = plan_.chunks()[i];
    const Piece& piece = pieces_[chunk.piece];
    chunks.push_back({static_cast<std::uint32_t>(chunk.bytes), piece.lossy, !piece.reference.empty()});
  }
  FrameExpectation expected{call_.kind,  call_.sequence, plan_.bytes(),
                            call_.check, f.first,        static_cast<std::uint32_t>(plan_.chunk_bytes()),
                            chunks};
  expected.codecs = options_.automatic ? codecs_of_auto() : named_ ? bit_of(named_->id) : 0;
  return FrameReader(message, expected);
}

void StreamCodec::decode(std::size_t frame, ConstBytes message) {
  Stopwatch watch(report_.decode_s);
  const FrameReader reader = read(frame, message);
  const StreamPlan::Frame& f = plan_.frames()[frame];
  for (std::size_t i = 0; i < f.chunks; ++i) {
    const StreamPlan::Chunk& chunk = plan_.chunks()[f.first + i];
    write_chunk(reader, i, chunk, spans_of(pieces_, chunk));
  }
}

void StreamCodec::decode_to(std::size_t frame, ConstBytes message, Bytes out) {
  Stopwatch watch(report_.decode_s);
  const FrameReader reader = read(frame, message);
  const StreamPlan::Frame& f = plan_.frames()[frame];
  std::size_t at = 0;
  for (std::size_t i = 0; i < f.chunks; ++i) {
    const StreamPlan::Chunk& chunk = plan_.chunks()[f.first + i];
    write_chunk(reader, i, chunk, {out.subspan(at, chunk.bytes)});
    at += chunk.bytes;
  }
}

void StreamCodec::round(std::size_t frame, ConstBytes message, Bytes data) {
  const auto changes = [](const CodecRow* codec) { return codec && codec->lossy; };
  const auto must_be_decoded = [&](const CodecRow* codec) { return changes(codec) && !codec->round; };
  if (std::any_of(last_codecs_.begin(), last_codecs_.end(), must_be_decoded)) return decode_to(frame, message, data);
  Stopwatch watch(report_.decode_s);
  const StreamPlan::Frame& f = plan_.frames()[frame];
  std::size_t at = 0;
  for (std::size_t i = 0; i < f.chunks; ++i) {
    const StreamPlan::Chunk& chunk = plan_.chunks()[f.first + i];
    const Piece& piece = pieces_[chunk.piece];
    if (changes(last_codecs_[i])) last_codecs_[i]->round({piece.type, piece.bound}, data.subspan(at, chunk.bytes));
    at += chunk.bytes;
  }
}

void StreamCodec::round_on_device(std::size_t frame, Bytes residual, double factor, bool replaces) {
  Stopwatch watch(report_.decode_s);
  const StreamPlan::Frame& f = plan_.frames()[frame];
  std::vector<DeviceTensors::Rounding> chunks;
  std::size_t beginning = 0, at = 0;
  for (std::size_t i = 0; i < f.chunks; ++i) {
    const StreamPlan::Chunk& chunk = plan_.chunks()[f.first + i];
    const auto& on_device = last_on_device_[i];
    if (on_device && !on_device->stored.empty() && on_device->codec->lossy) {
      beginning = on_device->beginning;
      const std::size_t width = element_bytes(pieces_[chunk.piece].type);
      const Bytes left = residual.empty()
                             ? residual
                             : residual.subspan(at / width * sizeof(float), chunk.bytes / width * sizeof(float));
      chunks.push_back({on_device->chunk, spans_of(pieces_, chunk)[0], left});
    }
    at += chunk.bytes;
  }
  if (!chunks.empty()) on_device_->round(beginning, chunks, factor, replaces);
}

bool StreamCodec::is_lossy() const {
  return std::any_of(pieces_.begin(), pieces_.end(), [](const Piece& piece) { return piece.lossy; });
}

void StreamCodec::write_chunk(const FrameReader& reader, std::size_t index, const StreamPlan::Chunk& chunk,
                              const std::vector<Bytes>& spans) {
  const Piece& piece = pieces_[chunk.piece];
  const ChunkRecord& record = reader.record(index);
  const bool is_delta = record.flags & ChunkRecord::kDelta;
  if (record.codec != CodecId::kNone) encoded_bytes_[record.codec] += record.raw;
  if (decodes_on_device_ && on_device_)
    if (auto to = place_of(*on_device_, pieces_, chunk, spans)) {
      const CodecRow* codec = record.codec == CodecId::kNone ? nullptr : find_codec(record.codec);
      if (!is_delta) to->references.clear();
      const Datatype type = is_delta ? delta_type(piece.type) : piece.type;
      if (!codec || on_device_->has(*codec, type)) {
        if (codec) device_bytes_ += record.raw;
        return on_device_->decode(codec, type, reader.stored(index), *to);
      }
      gathered_.resize(chunk.bytes);
      reader.decode(index, type, gathered_);
      return on_device_->decode(nullptr, type, gathered_, *to);
    }
  if (is_delta && on_device_) on_device_->fetch(references_of(pieces_, chunk));
  if (!is_delta && spans.size() == 1) return reader.decode(index, piece.type, spans[0]);
  gathered_.resize(chunk.bytes);
  reader.decode(index, is_delta ? delta_type(piece.type) : piece.type, gathered_);
  const ConstBytes reference = is_delta ? joined(references_of(pieces_, chunk), old_) : ConstBytes();
  if (is_delta && spans.size() == 1) return delta_decode(piece.type, gathered_, reference, spans[0]);
  if (is_delta) delta_decode(piece.type, gathered_, reference, gathered_);
  const std::byte* at = gathered_.data();
  for (const Bytes& span : spans) {
    std::memcpy(span.data(), at, span.size());
    at += span.size();
  }
}

void StreamCodec::finish_report() {
  std::uint64_t all = 0;
  for (const auto& [id, bytes] : encoded_bytes_) all += bytes;
  if (2 * device_bytes_ > all) report_.codec_place = "device";
  std::uint64_t most = 0;  // nothing encoded: what another codec of this operation said stays
  for (const auto& [id, bytes] : encoded_bytes_) {
    if (bytes <= most) continue;
    most = bytes;
    report_.codec = find_codec(id)->name;
  }
}

}  // namespace accdp
