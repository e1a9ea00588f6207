#include "coll/wire_reduction.hpp"

#include <algorithm>
#include <numeric>

#include "base/rounding.hpp"

namespace accdp {

FrameGrid::FrameGrid(std::vector<std::size_t> frame_bytes, int nodes, int lanes)
    : begins_(frame_bytes.size() + 1),
      largest_(frame_bytes.empty() ? 0 : std::ranges::max(frame_bytes)),
      nodes_(nodes),
      lanes_(lanes) {
  std::partial_sum(frame_bytes.begin(), frame_bytes.end(), begins_.begin() + 1);
}

FrameGrid FrameGrid::even(std::size_t bytes, std::size_t frame_bytes, int nodes, int lanes) {
  const std::size_t share = (bytes / (std::size_t(nodes) * lanes) / kLine + 1) * kLine;
  const std::size_t each = std::min(share, round_down(frame_bytes, kLine));
  std::vector<std::size_t> frames;
  for (std::size_t at = 0; at < bytes; at += each) frames.push_back(std::min(each, bytes - at));
  return FrameGrid(std::move(frames), nodes, lanes);
}

std::size_t FrameGrid::frame(std::size_t segment, int lane, int node) const {
  const std::size_t number = segment * per_segment() + std::size_t(lane) * nodes_ + node;
  return number < frames() && cut(number).bytes ? number : kNone;
}

FrameGrid::Cut FrameGrid::between(std::size_t first, std::size_t end) const {
  first = std::min(first, frames());
  end = std::min(end, frames());
  return {begins_[first], begins_[end] - begins_[first]};
}

std::size_t FrameGrid::longest_segment() const {
  std::size_t most = 0;
  for (std::size_t i = 0; i < segments(); ++i) most = std::max(most, segment(i).bytes);
  return most;
}

WireReduction::WireReduction(Context& c, const FrameGrid& grid, int lane, const Reduction& how, int receiver,
                             std::size_t ahead, FrameCodec* codec, Part part, Workplace* workplace)
    : c_(c),
      grid_(grid),
      lane_(lane),
      me_(c.topology().node()),
      receiver_(receiver),
      how_(how),
      codec_(codec),
      part_(part),
      workplace_(workplace),
      flights_(ahead),
      decoded_(codec ? grid.nodes() : 0) {
  for (Flight& f : flights_)
    for (auto* requests : {&f.contributions, &f.offers, &f.results, &f.answers}) requests->resize(grid.nodes());
  for (Flight& f : flights_) f.inbox.resize(grid.nodes()), f.outbox.resize(grid.nodes());
}

WireReduction::~WireReduction() {
  // After a failure; else all are complete.
  for (Flight& f : flights_) {
    for (Wire::Request& request : f.contributions) c_.forget(request);  // to memory of the group's
    for (auto* requests : {&f.offers, &f.results, &f.answers})
      for (Wire::Request& request : *requests) c_.abandon(request);
  }
}

int WireReduction::speaker(int node) const { return c_.topology().speaker(node, lane_, grid_.lanes()); }

Bytes WireReduction::memory_of(const Flight& f, std::size_t frame) const {
  const FrameGrid::Cut cut = grid_.cut(frame);
  return f.memory.subspan(cut.begin - grid_.segment(f.segment).begin, cut.bytes);
}

Wire::Request WireReduction::expect(int node, std::size_t frame, Bytes plain, Bytes& room, Wire::Tag tag) {
  if (!codec_ && !plain.empty()) return c_.wire().irecv(plain, speaker(node), tag, form());
  if (room.empty()) room = codec_ ? c_.scratch(codec_->room()) : scratch(grid_.largest());
  return c_.wire().irecv(codec_ ? room : room.first(grid_.cut(frame).bytes), speaker(node), tag, form());
}

void WireReduction::start(std::size_t segment, Bytes memory) {
  Flight& f = flight(segment);
  f.segment = segment;
  f.memory = memory;
  f.awaited.assign(grid_.nodes(), false);
  if (part_ != Part::kGather) contribute(f);
  ++started_;
  advance();
}

void WireReduction::contribute(Flight& f) {
  const std::size_t segment = f.segment;
  const std::size_t mine = grid_.frame(segment, lane_, me_);
  for (int node = 0; node < grid_.nodes(); ++node)
    if (node != me_ && mine != FrameGrid::kNone)
      f.contributions[node] = expect(node, mine, {}, f.inbox[node], Wire::kCollective);
  for (int step = 1; step < grid_.nodes(); ++step) {
    const int node = (me_ + step) % grid_.nodes();  // so that not all send to the same node first
    const std::size_t frame = grid_.frame(segment, lane_, node);
    if (frame == FrameGrid::kNone) continue;
    ConstBytes message = memory_of(f, frame);
    if (codec_) {
      if (f.outbox[node].empty()) f.outbox[node] = c_.scratch(codec_->room());
      message = codec_->encode_contribution(frame, f.outbox[node]);
    }
    f.offers[node] = c_.wire().isend(message, speaker(node), Wire::kCollective, form());
  }
}

int WireReduction::pending(std::vector<Wire::Request>& requests) {
  for (Wire::Request& request : requests)
    if (!c_.test(request)) return request.peer;
  return -1;
}

void WireReduction::advance() {
  // Results leave, and places for them are made, in the order of segments: so they match.
  while (folded_ < started_ && pending(flight(folded_).contributions) < 0) fold(flight(folded_++));
  while (expected_ < started_ && pending(flight(expected_).offers) < 0) expect_results(flight(expected_++));
  for (std::size_t segment = finished_; codec_ && segment < expected_; ++segment) take_results(flight(segment));
}

void WireReduction::fold(Flight& f) {
  const std::size_t frame = grid_.frame(f.segment, lane_, me_);
  if (frame == FrameGrid::kNone) return;
  const Bytes place = memory_of(f, frame);
  if (part_ != Part::kGather) reduce_frame(f, frame, place);
  ConstBytes message = place;
  if (codec_) {
    if (f.answer.empty()) f.answer = c_.scratch(codec_->room());
    message = codec_->encode_sum(frame, f.answer);
  }
  for (int step = 1; step < grid_.nodes(); ++step) {
    const int node = (me_ + step) % grid_.nodes();
    if (is_wanted(node)) f.answers[node] = c_.wire().isend(message, speaker(node), Wire::kResult, form());
  }
}

void WireReduction::reduce_frame(Flight& f, std::size_t frame, Bytes place) {
  std::vector<const void*> sources;
  for (int node = 0; node < grid_.nodes(); ++node) {
    if (node == me_) {
      sources.push_back(place.data());
    } else if (codec_) {
      if (decoded_[node].empty()) decoded_[node] = scratch(grid_.largest());
      codec_->decode_contribution(frame, f.inbox[node].first(f.contributions[node].bytes),
                                  decoded_[node].first(place.size()));
      sources.push_back(decoded_[node].data());
    } else {
      sources.push_back(f.inbox[node].data());
    }
  }
  const std::size_t count = place.size() / element_bytes(how_.type);
  if (workplace_)
    workplace_->reduce(place.data(), sources, count, how_);
  else
    reduce(place.data(), sources, count, how_);
}

void WireReduction::expect_results(Flight& f) {
  if (!is_wanted(me_)) return;
  for (int node = 0; node < grid_.nodes(); ++node) {
    const std::size_t frame = grid_.frame(f.segment, lane_, node);
    if (node == me_ || frame == FrameGrid::kNone) continue;
    // Its contribution has left, so the room it was encoded in is free.
    f.results[node] = expect(node, frame, memory_of(f, frame), f.outbox[node], Wire::kResult);
    f.awaited[node] = true;
  }
}

int WireReduction::take_results(Flight& f) {
  int late = -1;
  for (int node = 0; node < grid_.nodes(); ++node) {
    if (!f.awaited[node]) continue;
    Wire::Request& result = f.results[node];
    if (!c_.test(result)) {
      late = result.peer;
      continue;
    }
    f.awaited[node] = false;
    if (codec_) codec_->decode_sum(grid_.frame(f.segment, lane_, node), f.outbox[node].first(result.bytes));
  }
  return late;
}

int WireReduction::missing(std::size_t segment) {
  for (advance(); folded_ <= segment || expected_ <= segment; advance()) {
    const int late = folded_ <= segment ? pending(flight(folded_).contributions) : pending(flight(expected_).offers);
    if (late >= 0) return late;  // else it came just now
  }
  Flight& f = flight(segment);
  const int late = take_results(f);
  return late >= 0 ? late : pending(f.answers);
}

void WireReduction::finish(std::size_t segment) {
  c_.poll([&] { return missing(segment); });
  finished_ = segment + 1;
}

}  // namespace accdp
