// Allreduce with frames encoded between nodes (reduce_over_nodes.cpp): every node encodes its contribution to each
// other node's frames once; a frame's owner decodes them, adds all up in node order, encodes the sum once, and takes
// what it decodes to as its own result. So all ranks hold the same bits. On a node everything stays as it is.
//
// Error, for n nodes and a sum that is divided by d: n-1 contributions and one sum, each with an n-th of the bound:
// contributions get bound * d / n, the sum bound / n. A relative bound counts standard deviations of the result as they
// would be if the ranks' contributions were independent: sqrt(sum of their variances) / d. All ranks know that before
// the first frame leaves, by an allreduce of one float64 per tensor.
// Cost: as reduce_over_nodes.cpp with bytes divided by the ratio; encodes S and decodes 2*S*(n-1)/n bytes per node.
#include "coll/allreduce_stream.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "codec/residual.hpp"
#include "codec/spread.hpp"

namespace accdp {
namespace {

constexpr std::size_t kLeastChunk = 16 << 10, kChunkStep = 4 << 10;
constexpr int kFramesPerLane = 4;  // at least, where the message is long enough: so that stages overlap

class StreamFrames : public FrameCodec {
 public:
  StreamFrames(Context& c, const std::vector<Piece>& contributions, const std::vector<Piece>& sums,
               const StreamPlan& plan, const StreamOptions& options, double divisor, std::span<float> residual,
               StreamReport& report)
      : pieces_(sums),
        plan_(plan),
        contribution_(OpKind::kAllreduceCompressed, contributions, plan, options, c.signature().sequence, 0, report),
        sum_(OpKind::kAllreduceCompressed, sums, plan, options, c.signature().sequence, 0, report),
        divisor_(divisor),
        residual_(residual),
        report_(report),
        begins_(plan.frames().size()) {
    for (std::size_t i = 1; i < begins_.size(); ++i) begins_[i] = begins_[i - 1] + plan.frames()[i - 1].bytes;
  }

  void choose(const Journey& journey) {
    contribution_.choose(0, journey);
    sum_.choose(0, journey);
  }
  void finish_report() { contribution_.finish_report(), sum_.finish_report(); }

  std::size_t room() const override { return plan_.room(); }

  ConstBytes encode_contribution(std::size_t frame, Bytes room) override {
    const ConstBytes message = sent(frame, contribution_.encode(frame, room, 0));
    if (!residual_.empty()) {
      kept_.resize(memory(frame).size());
      contribution_.decode_to(frame, message, kept_);
      note_residual(frame, memory(frame), kept_, 1);
    }
    return message;
  }
  void decode_contribution(std::size_t frame, ConstBytes message, Bytes out) override {
    contribution_.decode_to(frame, message, out);
  }
  ConstBytes encode_sum(std::size_t frame, Bytes room) override {
    const ConstBytes message = sent(frame, sum_.encode(frame, room, 0));
    if (!sum_.is_lossy()) return message;
    const Bytes place = memory(frame);
    if (!residual_.empty()) kept_.assign(place.begin(), place.end());
    sum_.decode(frame, message);
    if (!residual_.empty()) note_residual(frame, kept_, place, divisor_);
    return message;
  }
  void decode_sum(std::size_t frame, ConstBytes message) override { sum_.decode(frame, message); }

 private:
  Bytes memory(std::size_t frame) const {
    return {pieces_.front().data.data() + begins_[frame], plan_.frames()[frame].bytes};
  }
  ConstBytes sent(std::size_t frame, ConstBytes message) {
    report_.wire_bytes += message.size();
    report_.logical_bytes += plan_.frames()[frame].bytes;
    return message;
  }
  void note_residual(std::size_t frame, ConstBytes exact, ConstBytes kept, double factor) {
    const Datatype type = pieces_.front().type;
    residual(type, exact, kept, factor, residual_.data() + begins_[frame] / element_bytes(type));
  }

  const std::vector<Piece>& pieces_;
  const StreamPlan& plan_;
  StreamCodec contribution_, sum_;
  const double divisor_;
  std::span<float> residual_;
  StreamReport& report_;
  std::vector<std::size_t> begins_;
  std::vector<std::byte> kept_;
};

/// Bounds of the result, tensor by tensor; the same on all ranks.
std::vector<double> bounds_of(Context& c, const std::vector<Piece>& pieces, const ErrorBound& bound, double divisor) {
  std::vector<double> bounds(pieces.size(), bound.value);
  if (!(bound.value > 0) || !bound.is_relative) return bounds;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const double deviation = standard_deviation(pieces[i].type, pieces[i].data);
    bounds[i] = deviation * deviation;
  }
  const Bytes variances = std::as_writable_bytes(std::span(bounds));
  reduce_to(c, variances, variances, {Datatype::kF64, ReduceOp::kSum}, -1);
  for (double& variance : bounds) variance = bound.value * std::sqrt(variance) / divisor;
  return bounds;
}

/// Short enough that every lane has several frames, long enough to be worth a message.
std::size_t chunk_for(const Context& c, std::size_t bytes, std::size_t asked, int lanes) {
  const std::size_t shares = std::size_t(c.topology().nodes()) * lanes;
  const std::size_t even = bytes / (shares * kFramesPerLane) / kChunkStep * kChunkStep;
  const std::size_t fits = std::max(c.slot_bytes() / shares / 16 * 16, std::size_t{1} << 10);
  return std::min({asked, std::max(even, kLeastChunk), fits});
}

}  // namespace

StreamReport allreduce_stream(Context& c, std::vector<Piece> pieces, const Reduction& how, const StreamOptions& options,
                              std::span<float> residual) {
  const auto began = Clock::now();
  const int nodes = c.topology().nodes();
  StreamReport report;
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.data.size();
  const Bytes data(pieces.empty() ? nullptr : pieces.front().data.data(), bytes);
  std::fill(residual.begin(), residual.end(), 0.0F);
  if (nodes == 1 || bytes == 0) {
    reduce_to(c, data, data, how, -1);
  } else {
    c.meet();
    const double divisor = how.op == ReduceOp::kAvg ? how.divisor : 1;
    const std::vector<double> bounds = bounds_of(c, pieces, options.bound, divisor);
    std::vector<Piece> sums = pieces;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      pieces[i].lossy = sums[i].lossy = options.bound.value > 0 && is_real_float(pieces[i].type);
      pieces[i].bound = bounds[i] * divisor / nodes;
      sums[i].bound = bounds[i] / nodes;
    }
    const int lanes = lanes_for(bytes, c.shape());
    const StreamPlan plan(pieces, chunk_for(c, bytes, options.chunk_bytes, lanes));
    std::vector<std::size_t> frames;
    for (const StreamPlan::Frame& frame : plan.frames()) frames.push_back(frame.bytes);
    StreamFrames codec(c, pieces, sums, plan, options, divisor, residual, report);
    const double share = 2.0 * bytes * (nodes - 1) / nodes / lanes;
    codec.choose({share, static_cast<double>(plan.chunk_bytes()), 1, c.link().bytes_per_s() / lanes,
                  c.link().latency_s(), c.message_cost().seconds_per_byte(), c.cores_per_node() / lanes});
    report.algorithm = lanes > 1 ? "lanes" : "leaders";
    reduce_frames(c, data, data, how, -1, FrameGrid(std::move(frames), nodes, lanes), &codec);
    codec.finish_report();
  }
  report.total_s = std::chrono::duration<double>(Clock::now() - began).count();
  return report;
}

}  // namespace accdp
