// Allreduce with frames encoded between nodes (reduce_over_nodes.cpp): every node encodes its contribution to each
// other node's frames once; a frame's owner decodes them, adds all up in node order, encodes the sum once, and takes
// what it decodes to as its own result. So all ranks hold the same bits. On a node everything stays as it is; where
// all of its ranks have their tensors on devices that they reach, they add up and hand round there.
//
// Error, for n nodes and a sum that is divided by d: n-1 contributions and one sum share the bound. As many bytes
// travel as contributions as do as sums, so the product of their bounds should be the largest: the sum gets half of the
// bound, the contributions an (n-1)-th of the other half each, times d. A relative bound counts standard deviations of
// the result as they would be if the ranks' contributions were independent: sqrt(sum of their variances) / d. The link
// has to be known: a group measures it once, before its first message of some size for which a codec is chosen. Before
// the first frame, an allreduce of one float64 per tensor and one more: those variances, and how many ranks would
// encode. If none would, the message goes as it is, without frames. Cost: as reduce_over_nodes.cpp with bytes divided
// by the ratio; encodes S and decodes 2*S*(n-1)/n bytes per node.
#include "coll/allreduce_stream.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "base/hash.hpp"
#include "base/rounding.hpp"
#include "codec/residual.hpp"
#include "coll/measure.hpp"
#include "coll/ordered_costs.hpp"
#include "coll/sum_journey.hpp"

namespace accdp {
namespace {

constexpr std::size_t kChunkStep = 4 << 10;
constexpr std::size_t kWorthMeasuring = 1 << 20;  // bytes: what measuring the link costs is soon made up for
constexpr int kFramesPerLane = 4;                 // at least, where the message is long enough: so that stages overlap

bool is_lossy(const ErrorBound& bound) { return bound.value > 0; }

class StreamFrames : public FrameCodec {
 public:
  StreamFrames(Context& c, const std::vector<Piece>& contributions, const std::vector<Piece>& sums,
               const StreamPlan& plan, const StreamOptions& options, double divisor, std::span<float> residual,
               StreamReport& report)
      : pieces_(sums),
        plan_(plan),
        contribution_(c.signature(), contributions, plan, options, report),
        sum_(c.signature(), sums, plan, options, report),
        divisor_(divisor),
        others_(c.topology().nodes() - 1),
        residual_(residual),
        report_(report),
        begins_(plan.frames().size()) {
    for (std::size_t i = 1; i < begins_.size(); ++i) begins_[i] = begins_[i - 1] + plan.frames()[i - 1].bytes;
  }

  /// For all ranks; null: nothing had better be encoded.
  const CodecRow* choose(const Journey& journey, Experiences& known) {
    contribution_.choose(0, journey, &known);
    return contribution_.choices().at(class_of(pieces_.front()));  // tensors of an allreduce are of one class
  }
  void choose_as(const CodecRow* codec) {
    contribution_.choose_as({{class_of(pieces_.front()), codec}});
    sum_.choose_as(contribution_.choices());
  }
  /// Of the rank that chose: it took so long.
  void note_time(double seconds) { contribution_.note_time(seconds); }
  void finish_report() { contribution_.finish_report(), sum_.finish_report(); }

  bool is_for_device() const { return contribution_.is_for_device(); }
  bool needs_device() const { return contribution_.needs_device(); }
  void stand_in() { contribution_.stand_in(), sum_.stand_in(); }
  /// All is encoded, decoded and reduced there; else in the host, which has the tensors then. contributions: the frames
  /// that this rank encodes for others, in that order.
  void settle(bool is_on_device, std::vector<std::size_t> contributions) {
    is_on_device_ = is_on_device;
    if (is_on_device_) {
      contribution_.encode_in_order(std::move(contributions));
      sum_.encode_in_order({});
      contribution_.decode_on_device(true);
      sum_.decode_on_device(true);
    } else {
      contribution_.fetch();
      contribution_.stay_on_host();
      sum_.stay_on_host();
    }
  }

  std::size_t room() const override { return plan_.room(); }

  ConstBytes encode_contribution(std::size_t frame, Bytes room) override {
    const ConstBytes message = sent(frame, contribution_.encode(frame, room), 1);
    if (is_on_device_) {
      if (!residual_.empty()) contribution_.round_on_device(frame, residual_of(frame), 1, false);
    } else if (!residual_.empty()) {
      const Bytes exact = memory(frame);
      kept_.assign(exact.begin(), exact.end());
      contribution_.round(frame, message, kept_);
      note_residual(frame, exact, kept_, 1);
    }
    return message;
  }
  void decode_contribution(std::size_t frame, ConstBytes message, Bytes out) override {
    contribution_.decode_to(frame, message, out);
  }
  ConstBytes encode_sum(std::size_t frame, Bytes room) override {
    const ConstBytes message = sent(frame, sum_.encode(frame, room), others_);
    if (!sum_.is_lossy()) return message;
    if (is_on_device_) {
      sum_.round_on_device(frame, residual_.empty() ? Bytes() : residual_of(frame), divisor_, true);
      return message;
    }
    const Bytes place = memory(frame);
    if (!residual_.empty()) kept_.assign(place.begin(), place.end());
    sum_.round(frame, message, place);
    if (!residual_.empty()) note_residual(frame, kept_, place, divisor_);
    return message;
  }
  void decode_sum(std::size_t frame, ConstBytes message) override { sum_.decode(frame, message); }

 private:
  Bytes memory(std::size_t frame) const {
    return {pieces_.front().data.data() + begins_[frame], plan_.frames()[frame].bytes};
  }
  ConstBytes sent(std::size_t frame, ConstBytes message, std::size_t receivers) {
    report_.wire_bytes += receivers * message.size();
    report_.logical_bytes += receivers * plan_.frames()[frame].bytes;
    return message;
  }
  Bytes residual_of(std::size_t frame) const {
    const std::size_t width = element_bytes(pieces_.front().type);
    return std::as_writable_bytes(residual_.subspan(begins_[frame] / width, plan_.frames()[frame].bytes / width));
  }
  void note_residual(std::size_t frame, ConstBytes exact, ConstBytes kept, double factor) {
    const Datatype type = pieces_.front().type;
    residual(type, exact, kept, factor, residual_.data() + begins_[frame] / element_bytes(type));
  }

  const std::vector<Piece>& pieces_;
  const StreamPlan& plan_;
  StreamCodec contribution_, sum_;
  const double divisor_;
  const std::size_t others_;  // nodes
  std::span<float> residual_;
  StreamReport& report_;
  std::vector<std::size_t> begins_;
  std::vector<std::byte> kept_;
  bool is_on_device_ = false;
};

/// Frames that were decoded on the device are reduced there, too.
class DeviceWorkplace final : public WireReduction::Workplace {
 public:
  explicit DeviceWorkplace(DeviceTensors& on_device) : on_device_(on_device) {}
  Bytes scratch(std::size_t bytes) override { return on_device_.scratch(bytes); }
  void reduce(void* dst, std::span<const void* const> srcs, std::size_t count, const Reduction& how) override {
    const std::size_t bytes = count * element_bytes(how.type);
    std::vector<ConstBytes> sources;
    for (const void* source : srcs) sources.emplace_back(static_cast<const std::byte*>(source), bytes);
    on_device_.reduce({static_cast<std::byte*>(dst), bytes}, sources, how);
  }

 private:
  DeviceTensors& on_device_;
};

/// Variances of this rank's tensors, as far as a bound needs them.
std::vector<double> variances_of(const std::vector<Piece>& pieces, const ErrorBound& bound, DeviceTensors* on_device) {
  std::vector<double> variances(pieces.size());
  if (!is_lossy(bound) || !bound.is_relative) return variances;
  variances = deviations_of(pieces, on_device);
  for (double& variance : variances) variance *= variance;
  return variances;
}

/// The sum's share of a bound: half, which leaves the fewest bytes. Steps of 16-bit floats are powers of two
/// (codec/quantiser.cpp), so there the shares are chosen that leave the largest powers.
double share_of_sum(Datatype type, double bound, int contributions, double divisor) {
  const auto powers = [&](double sum) { return std::ilogb(sum) + std::ilogb((bound - sum) * divisor / contributions); };
  double best = bound / 2;
  if (element_bytes(type) != 2) return best;
  for (double sum = std::exp2(std::ilogb(bound)); sum > bound / 16; sum /= 2)
    if (sum < bound && powers(sum) > powers(best)) best = sum;
  return best;
}

/// Short enough that every lane has several frames, long enough to be worth a message. Where there are lanes a segment,
/// which is one frame of each share, goes through one slot: it must fit, however short its frames become.
std::size_t chunk_for(const Context& c, std::size_t bytes, std::size_t asked, int lanes) {
  const std::size_t shares = std::size_t(c.topology().nodes()) * lanes;
  const std::size_t even = round_down(bytes / (shares * kFramesPerLane), kChunkStep);
  const std::size_t slot_share = round_down(c.shape().slot_bytes / shares, kFrameAlign);
  const std::size_t fits = lanes > 1 ? slot_share : std::max(slot_share, kLeastFrame);
  return std::min({asked, std::max(even, kLeastEncodedFrame), fits});
}

class OverNodes {
 public:
  OverNodes(Context& c, std::vector<Piece> pieces, const Reduction& how, const StreamOptions& options,
            std::span<float> residual, StreamReport& report)
      : c_(c),
        how_(how),
        residual_(residual),
        options_(options),
        nodes_(c.topology().nodes()),
        divisor_(how.op == ReduceOp::kAvg ? how.divisor : 1),
        contributions_(lossy_where(std::move(pieces), options.bound)),
        sums_(contributions_),
        data_(whole(contributions_)),
        lanes_(encoding_lanes(data_.size(), c.shape(), c.machine())),
        plan_(contributions_, chunk_for(c, data_.size(), options.chunk_bytes, lanes_)),
        grid_(frames_of(plan_), nodes_, lanes_),
        codec_(c, contributions_, sums_, plan_, options_, divisor_, residual, report),
        report_(report) {}

  void run() {
    report_.algorithm = lanes_ > 1 ? "lanes" : "leaders";
    const bool encodes = agree_to_encode();
    const auto began = Clock::now();
    if (encodes) {
      reduce_encoded();
      codec_.finish_report();
    } else {
      if (options_.on_device) fetch_all(*options_.on_device, contributions_);
      const std::uint64_t sent = c_.sent_bytes();
      c_.note_anew();
      reduce_to(c_, data_, data_, how_, -1);
      const Way& way = c_.way();
      if (way.algorithm != std::string(name_of(ReduceAlgorithm::kPipeline)))
        report_.algorithm = way.algorithm;
      else
        report_.algorithm = way.lanes > 1 ? "lanes" : "leaders";
      report_.logical_bytes = report_.wire_bytes = c_.sent_bytes() - sent;
    }
    // All began together, and nobody has the result before all have sent.
    if (decides()) codec_.note_time(seconds_since(began));
  }

 private:
  static std::vector<Piece> lossy_where(std::vector<Piece> pieces, const ErrorBound& bound) {
    for (Piece& piece : pieces) piece.lossy = is_lossy(bound) && is_real_float(piece.type);
    return pieces;
  }
  static Bytes whole(const std::vector<Piece>& pieces) { return {pieces.front().data.data(), total_bytes(pieces)}; }
  static std::vector<std::size_t> frames_of(const StreamPlan& plan) {
    std::vector<std::size_t> frames;
    for (const StreamPlan::Frame& frame : plan.frames()) frames.push_back(frame.bytes);
    return frames;
  }
  bool decides() const { return options_.automatic && c_.topology().rank() == 0; }
  bool speaks() const { return lanes_ > 1 || c_.topology().is_leader(); }

  /// On their devices the ranks of a node add up all of the message before it goes to other nodes, and hand out all of
  /// it at the end: both at the speed of a GPU's memory, beside which what there is to overlap would be little.
  void reduce_encoded() {
    bool is_on_device = works_on_device();
    if (codec_.needs_device() && !is_so_on_all(is_on_device)) {
      codec_.stand_in();
      is_on_device = works_on_device();
    }
    const bool is_alone = c_.local_size() == 1;
    codec_.settle(is_on_device, contributed_frames());
    if (!is_on_device) return reduce_frames(c_, data_, data_, how_, -1, grid_, &codec_);
    DeviceTensors& on_device = *options_.on_device;
    if (!is_alone) on_device.reduce_on_node(c_, data_, lots(), how_.partial());
    DeviceWorkplace workplace(on_device);
    reduce_frames_between_nodes(c_, data_, how_, grid_, &codec_, workplace);
    on_device.finish();
    if (!is_alone) on_device.share_on_node(c_, data_, lots());
  }

  bool is_so_on_all(bool mine) {
    double without = mine ? 0 : 1;
    agree_on(c_, {&without, 1}, ReduceOp::kSum);
    return without == 0;
  }

  /// Whether this rank could reduce on its device.
  bool may_be_on_device() const {
    return options_.on_device && options_.on_device->holds(data_) &&
           options_.on_device->holds(std::as_bytes(residual_)) &&
           nodes_ <= static_cast<int>(DeviceTensors::kMostSources);
  }

  /// All ranks of a node work on their devices, or none.
  bool works_on_device() {
    const bool mine = may_be_on_device() && (!speaks() || codec_.is_for_device());
    if (c_.local_size() == 1) return mine;
    const bool good = work_on_devices_together(mine);
    if (mine) c_.learned().node_sums_on_device = good;
    return good;
  }
  bool work_on_devices_together(bool good) {
    std::memcpy(c_.open(sizeof good), &good, sizeof good);
    c_.publish();
    c_.await_all();
    for (int rank = 0; rank < c_.local_size(); ++rank) {
      bool theirs;
      std::memcpy(&theirs, c_.slot(rank), sizeof theirs);
      good &= theirs;
    }
    return good && options_.on_device->joins_node(c_);
  }

  std::vector<DeviceTensors::Lot> lots() const {
    const Topology& t = c_.topology();
    if (lanes_ == 1) return {{0, data_.size(), t.local_of(t.leader(t.node()))}};
    std::vector<DeviceTensors::Lot> found;
    for (std::size_t segment = 0; segment < grid_.segments(); ++segment)
      for (int lane = 0; lane < lanes_; ++lane)
        if (const FrameGrid::Cut cut = grid_.lane(segment, lane); cut.bytes > 0)
          found.push_back({cut.begin, cut.bytes, lane});
    return found;
  }

  /// In the order in which they are encoded.
  std::vector<std::size_t> contributed_frames() const {
    if (!speaks()) return {};
    const int me = c_.topology().node(), lane = lanes_ > 1 ? c_.local_rank() : 0;
    std::vector<std::size_t> frames;
    for (std::size_t segment = 0; segment < grid_.segments(); ++segment)
      for (int step = 1; step < nodes_; ++step)
        if (const std::size_t frame = grid_.frame(segment, lane, (me + step) % nodes_); frame != FrameGrid::kNone)
          frames.push_back(frame);
    return frames;
  }

  /// Rank 0 chooses for all, by samples of its own data and by what allreduces like this one took. What the ranks have
  /// to tell each other goes in one allreduce: the variances of their tensors, and the number of the codec.
  bool agree_to_encode() {
    if (options_.automatic && data_.size() >= kWorthMeasuring) get_to_know_link(c_);
    const Journey journey = this->journey();
    if (options_.automatic ? journey.bytes < StreamCodec::kTooSmall : !options_.codec) return false;
    std::vector<double> told = variances_of(contributions_, options_.bound, options_.on_device);
    if (decides()) {
      // As if all ranks had their tensors where this one has.
      options_.encodes_on_device = options_.decodes_on_device = may_be_on_device() && c_.learned().node_sums_on_device;
      std::vector<double> guessed = told;  // as if all ranks had data like this one's
      for (double& variance : guessed) variance *= c_.topology().size();
      set_bounds(guessed);
    }
    const CodecRow* mine = decides() ? choose(journey) : nullptr;
    told.push_back(mine ? static_cast<double>(mine->id) : 0);
    if (options_.automatic || options_.bound.is_relative) agree_on(c_, told, ReduceOp::kSum);
    set_bounds(told);
    if (!options_.automatic) return true;
    const auto id = static_cast<CodecId>(told.back());
    if (id != CodecId::kNone) codec_.choose_as(find_codec(id));
    return id != CodecId::kNone;
  }

  Journey journey() {
    Journey journey = sum_journey({static_cast<double>(data_.size()), static_cast<double>(plan_.chunk_bytes()), 1,
                                   c_.learned().link.bytes_per_s(), c_.learned().link.latency_s(),
                                   c_.learned().message_cost.seconds_per_byte(), c_.cores_per_node()},
                                  c_.shape(), c_.machine());
    // Who owns a sum rounds it to what the others decode, which costs about as much as decoding it.
    if (is_lossy(options_.bound)) journey.own_decodes += 0.5 / (nodes_ - 1);
    return journey;
  }

  /// All that a choice of codecs depends on but the data.
  std::uint64_t kind_of_tensors() const {
    return Hash(layout_of(contributions_))
        .add({std::bit_cast<std::uint64_t>(options_.bound.value), std::uint64_t{options_.bound.is_relative},
              std::uint64_t{plan_.chunk_bytes()}})
        .value();
  }

  const CodecRow* choose(const Journey& journey) {
    Experiences& known = c_.learned().sums.of(kind_of_tensors());
    known.link_is(journey.link_bytes_per_s);
    return codec_.choose(journey, known);
  }

  /// Contributions and sums get their shares of the bounds of the result; `variances`, of all ranks together, tensor by
  /// tensor. Never 0, or what is constant on some ranks would be another kind of data than what was sampled.
  void set_bounds(std::span<const double> variances) {
    constexpr double kLeast = 1e-306, kMost = 1e300;  // so that a share of it, and what divides by that, is a number
    if (!is_lossy(options_.bound)) return;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      const double unit = options_.bound.is_relative ? std::sqrt(variances[i]) / divisor_ : 1;
      // Of deviations that are beyond all numbers nothing is known.
      const double whole = std::isfinite(unit) ? std::clamp(options_.bound.value * unit, kLeast, kMost) : kLeast;
      sums_[i].bound = share_of_sum(sums_[i].type, whole, nodes_ - 1, divisor_);
      contributions_[i].bound = (whole - sums_[i].bound) * divisor_ / (nodes_ - 1);
    }
  }

  Context& c_;
  const Reduction& how_;
  const std::span<float> residual_;
  StreamOptions options_;
  const int nodes_;
  const double divisor_;
  std::vector<Piece> contributions_, sums_;
  const Bytes data_;
  const int lanes_;
  const StreamPlan plan_;
  const FrameGrid grid_;
  StreamFrames codec_;
  StreamReport& report_;
};

}  // namespace

StreamReport allreduce_stream(Context& c, std::vector<Piece> pieces, const Reduction& how, const StreamOptions& options,
                              std::span<float> residual, bool in_rank_order) {
  const auto began = Clock::now();
  StreamReport report;
  const std::size_t bytes = total_bytes(pieces);
  const auto leave_nothing_out = [&] { std::fill(residual.begin(), residual.end(), 0.0F); };
  if (c.topology().nodes() == 1 || bytes == 0 || in_rank_order) {
    if (options.on_device) fetch_all(*options.on_device, pieces);
    const Bytes data(pieces.empty() ? nullptr : pieces.front().data.data(), bytes);
    if (in_rank_order) report.algorithm = kRankOrder;
    (in_rank_order ? reduce_in_rank_order : reduce_to)(c, data, data, how, -1);
    leave_nothing_out();
  } else {
    // A rank may leave something out, and it alone knows whether it does: all or none wait for the other nodes.
    is_lossy(options.bound) ? c.meet_everywhere() : c.meet();
    leave_nothing_out();
    OverNodes(c, std::move(pieces), how, options, residual, report).run();
  }
  report.total_s = seconds_since(began);
  return report;
}

}  // namespace accdp
