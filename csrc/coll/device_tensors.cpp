#include "coll/device_tensors.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "codec/crc32c.hpp"
#include "codec/delta.hpp"
#include "codec/spread.hpp"

namespace accdp {
namespace {

constexpr std::size_t kNoTurn = static_cast<std::size_t>(-1);

/// Spans that touch become one where the device has them in one, too.
std::vector<Bytes> joined(const DeviceTensors& on_device, const std::vector<Bytes>& spans) {
  std::vector<Bytes> found;
  for (const Bytes& span : spans) {
    const bool touches = !found.empty() && found.back().data() + found.back().size() == span.data();
    const Bytes both = touches ? Bytes(found.back().data(), found.back().size() + span.size()) : span;
    if (touches && on_device.holds(both))
      found.back() = both;
    else
      found.push_back(span);
  }
  return found;
}

}  // namespace

std::optional<DeviceTensors::Place> place_of(const DeviceTensors& on_device, const std::vector<Piece>& pieces,
                                             const StreamPlan::Chunk& chunk, const std::vector<Bytes>& spans) {
  const Piece& piece = pieces[chunk.piece];
  DeviceTensors::Place place{spans, {}, piece.type};
  if (!piece.reference.empty()) place.references = references_of(pieces, chunk);
  const auto is_on_device = [&](ConstBytes span) { return on_device.holds(span); };
  if (!std::all_of(place.spans.begin(), place.spans.end(), is_on_device) ||
      !std::all_of(place.references.begin(), place.references.end(), is_on_device))
    return std::nullopt;
  if (place.references.empty()) place.spans = joined(on_device, spans);
  return place;
}

void fetch_all(DeviceTensors& on_device, const std::vector<Piece>& pieces) {
  std::vector<ConstBytes> all;
  for (const Piece& piece : pieces) {
    all.push_back(piece.data);
    all.push_back(piece.reference);
  }
  on_device.fetch(all);
}

std::vector<double> deviations_of(const std::vector<Piece>& pieces, DeviceTensors* on_device) {
  std::vector<double> found(pieces.size());
  std::vector<DeviceTensors::Tensor> tensors;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (!is_real_float(pieces[i].type)) continue;
    if (on_device && on_device->holds(pieces[i].data)) {
      tensors.push_back({pieces[i].data, pieces[i].type});
      places.push_back(i);
    } else {
      found[i] = standard_deviation(pieces[i].type, pieces[i].data);
    }
  }
  if (!tensors.empty()) {
    const std::vector<double> device_ones = on_device->deviations(tensors);
    for (std::size_t i = 0; i < places.size(); ++i) found[places[i]] = device_ones[i];
  }
  for (double& deviation : found) deviation *= 1 - kSpreadError;
  return found;
}

std::uint64_t reference_check(const std::vector<Piece>& pieces, DeviceTensors* on_device) {
  std::uint32_t crc = 0;
  bool any = false;
  for (const Piece& piece : pieces) {
    any |= !piece.reference.empty();
    const bool is_on_device = on_device && !piece.reference.empty() && on_device->holds(piece.reference);
    crc = is_on_device ? on_device->crc32c(piece.reference, crc) : crc32c(piece.reference, crc);
  }
  return any ? (std::uint64_t{1} << 32 | crc) : 0;
}

void set_bounds(std::vector<Piece>& pieces, const ErrorBound& bound, DeviceTensors* on_device) {
  std::vector<double> units(pieces.size(), 1);
  if (bound.is_relative && bound.value > 0) units = deviations_of(pieces, on_device);
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (pieces[i].lossy) pieces[i].bound = std::min(bound.value * units[i], std::numeric_limits<double>::max());
}

DeviceFrames::DeviceFrames(DeviceTensors& on_device, const std::vector<Piece>& pieces, const StreamPlan& plan,
                           CodecFor codec_for)
    : on_device_(on_device), pieces_(pieces), plan_(plan), codec_for_(std::move(codec_for)) {
  std::vector<std::size_t> frames(plan.frames().size());
  std::iota(frames.begin(), frames.end(), 0);
  in_order(std::move(frames));
}

void DeviceFrames::in_order(std::vector<std::size_t> frames) {
  turns_ = std::move(frames);
  turn_of_.assign(plan_.frames().size(), kNoTurn);
  for (std::size_t turn = 0; turn < turns_.size(); ++turn) turn_of_[turns_[turn]] = turn;
}

bool DeviceFrames::Run::has(std::size_t frame) const {
  return std::any_of(chunks.begin(), chunks.end(), [&](const Coded& chunk) { return chunk.frame == frame; });
}

void DeviceFrames::add(Run& run, std::size_t frame, std::vector<DeviceTensors::Chunk>& chunks) const {
  const StreamPlan::Frame& f = plan_.frames()[frame];
  for (std::size_t i = f.first; i < f.first + f.chunks; ++i) {
    const Piece& piece = pieces_[plan_.chunks()[i].piece];
    const Encoding how{piece.reference.empty() ? piece.type : delta_type(piece.type), piece.bound};
    const CodecRow* codec = codec_for_(piece);
    if (codec && !on_device_.has(*codec, how.type)) codec = nullptr;
    const StreamPlan::Chunk& chunk = plan_.chunks()[i];
    std::optional<DeviceTensors::Place> place;
    if (codec) place = place_of(on_device_, pieces_, chunk, spans_of(pieces_, chunk));
    run.chunks.push_back({frame, place ? codec : nullptr});
    if (place) chunks.push_back({std::move(*place), codec, how});
  }
}

void DeviceFrames::begin(Run& run, std::size_t frame) {
  if (run.beginning) on_device_.end_encode(*run.beginning);
  run = Run();
  std::vector<DeviceTensors::Chunk> chunks;
  add(run, frame, chunks);
  const std::size_t turn = turn_of_[frame];
  if (turn != kNoTurn) {
    std::size_t bytes = plan_.frames()[frame].bytes;
    for (run.end = turn + 1; run.end < turns_.size(); ++run.end) {
      const StreamPlan::Frame& next = plan_.frames()[turns_[run.end]];
      bytes += next.bytes;
      if (bytes > DeviceTensors::kRunBytes || chunks.size() + next.chunks > DeviceTensors::kMostChunks) break;
      add(run, turns_[run.end], chunks);
    }
  }
  run.beginning = on_device_.begin_encode(chunks);
}

std::vector<std::optional<DeviceFrames::Encoded>> DeviceFrames::take(std::size_t frame) {
  if (plan_.frames()[frame].chunks == 0) return {};
  if (!runs_[latest_].has(frame) && !runs_[1 - latest_].has(frame)) {  // the first, or out of turn
    latest_ = 1 - latest_;
    begin(runs_[latest_], frame);
  }
  const std::size_t mine = runs_[latest_].has(frame) ? latest_ : 1 - latest_;
  const std::size_t next = runs_[mine].end;
  if (mine == latest_ && turn_of_[frame] != kNoTurn && next < turns_.size()) {
    latest_ = 1 - latest_;
    begin(runs_[latest_], turns_[next]);
  }
  const Run& run = runs_[mine];
  const std::vector<ConstBytes>& stored = on_device_.encoded(*run.beginning);
  std::vector<std::optional<Encoded>> chunks;
  std::size_t number = 0;
  for (const Coded& chunk : run.chunks) {
    const std::size_t mine_of_run = chunk.codec ? number++ : 0;
    if (chunk.frame != frame) continue;
    chunks.emplace_back();
    if (chunk.codec) chunks.back() = {chunk.codec, stored[mine_of_run], *run.beginning, mine_of_run};
  }
  return chunks;
}

}  // namespace accdp
