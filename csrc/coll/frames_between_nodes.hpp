#pragma once
#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "coll/algorithms.hpp"
#include "coll/bcast_stream.hpp"
#include "coll/receipts.hpp"

namespace accdp {

/// A frame on its way through a node: where its message lies, and who has not got it yet.
struct Passage {
  Bytes room;
  Wire::Request receive;
  std::vector<Wire::Request> sends;
};

/// What ranks tell each other with their signatures: the root how the stream goes, who decodes it that it does so in
/// the host, who encodes or decodes that its device has not the codec that must be there (StreamCodec::needs_device),
/// and who was the last to have all of the stream before from this root how long that one took.
enum Notice : std::uint64_t { kNothing = 0, kDirect = 1, kReceipts = 2, kDecodesInHost = 4, kNeedsStandIn = 8 };
constexpr int kTimeAt = 8;  // the bit where nanoseconds begin

/// A broadcast of frames between nodes, on one rank; bcast_stream.cpp says how it goes.
class FramesBetweenNodes {
 public:
  /// codec: null where the frames go as they are, and everybody knows that.
  FramesBetweenNodes(Context& c, const std::vector<Piece>& pieces, const StreamPlan& plan, int root,
                     BcastAlgorithm algorithm, StreamCodec* codec, bool root_takes_decoded, StreamReport& report)
      : c_(c),
        pieces_(pieces),
        plan_(plan),
        codec_(codec),
        report_(report),
        takes_decoded_(root_takes_decoded),
        root_node_(c.topology().node_of(root)),
        nodes_(c.topology().nodes()),
        place_((c.topology().node() - root_node_ + nodes_) % nodes_),
        root_(root),
        leader_(c.topology().leader(c.topology().node(), root)),
        leads_(leader_ == c.topology().rank()),
        goes_round_(algorithm == BcastAlgorithm::kScatterAllgather),
        hops_(bcast_schedule(algorithm, nodes_, place_, plan.frames().size())),
        direct_(codec == nullptr) {}

  /// Root: chooses the codecs; returns what the others have to know, so that they can wait for frames before the first
  /// has come.
  std::uint64_t decide(const Journey& journey) {
    if (!codec_) return 0;
    knew_link_ = c_.learned().link.is_known();
    considered_ = journey.link_bytes_per_s;
    codec_->choose(0, journey, &c_.learned().bcasts);
    // Frames without heads cannot be encoded later: not while a long stream may still learn what the link is like.
    const bool direct = !codec_->encodes() && (knew_link_ || plan_.frames().size() < kFramesToLearn);
    const bool wants_receipts = c_.learned().link.wants_receipts(plan_.frames().size(), plan_.bytes());
    return (direct ? kDirect : kNothing) | (wants_receipts ? kReceipts : kNothing);
  }

  /// After all have met.
  void run(const Journey& journey) {
    double handing_over = 0;
    const auto met = Clock::now();
    if (leads_ && codec_) {
      direct_ = c_.told() & kDirect;
      wants_receipts_ = c_.told() & kReceipts;
      if (place_ == 0 && direct_) codec_->fetch();
      if (place_ == 0) c_.learned().link.begin(direct_ ? LinkMeter::Stream::kDirect : LinkMeter::Stream::kEncoded);
    }
    if (leads_) count_frames();
    const double began = processor_seconds();
    const auto under_way = Clock::now();
    try {
      for (std::size_t i = 0; i < hops_.size(); ++i) {
        const Hop& hop = hops_[i];
        if (leads_ && place_ == 0)
          give(i, journey);
        else if (leads_)
          take(i);
        if (leads_) rest_between_frames(Clock::now() - under_way, i + 1);
        if (c_.local_size() == 1) continue;
        const double before = processor_seconds();
        hand_over(hop.frame);
        handing_over += processor_seconds() - before;
      }
      for (Passage& passage : passages_) settle(passage);
      for (auto& [place, frames] : taken_) frames.await_all();
      for (auto& [place, frames] : given_) frames.await_all();
      if (wants_receipts_ && place_ == 0) c_.learned().link.end(Clock::now());
      if (leads_ && codec_ && place_ == nodes_ - 1) note_time(Clock::now() - met);
      if (leads_ && direct_)
        c_.learned().message_cost.note(processor_seconds() - began - handing_over, seconds_since(under_way),
                                       static_cast<double>(moved_bytes_), c_.cores_per_node());
    } catch (...) {
      for (Passage& passage : passages_) {
        c_.abandon(passage.receive);
        for (Wire::Request& send : passage.sends) c_.abandon(send);
      }
      for (auto& [place, frames] : taken_) frames.abandon();
      for (auto& [place, frames] : given_) frames.abandon();
      throw;
    }
  }

  /// Root, at the end: what ranks of all nodes told, most of it of the stream before.
  void hear() {
    if (!codec_) return;
    const auto told = c_.told_by_all();
    if (told) c_.learned().receivers_decode_on_device = !(*told & kDecodesInHost);
    // A time that was told and not heard is lost: the next one is of another stream.
    c_.learned().bcasts.took(static_cast<double>(told.value_or(kNothing) >> kTimeAt) * 1e-9);
    // A root that does not lead its node begins when the ranks there have come, and the clocks start when all nodes
    // have: that is little of a long stream, but nearly all of one frame. The model takes "none" to be direct.
    const bool knows_time = c_.topology().is_leader() || plan_.frames().size() > 1;
    if (is_as_chosen_ && knows_time && direct_ != codec_->encodes()) codec_->expect_time();
  }

 private:
  int leader_at(int place) const { return c_.topology().leader((place + root_node_) % nodes_, root_); }
  /// By whom this node gets frames, to whom it gives them, and how many.
  void count_frames() {
    std::map<int, std::size_t> from, to;
    for (const Hop& hop : hops_) {
      if (hop.from >= 0) ++from[hop.from];
      for (int place : hop.to) ++to[place];
    }
    // On a ring root goes round all nodes before it comes to the one that the first node behind it waits for.
    const std::size_t round = goes_round_ ? static_cast<std::size_t>(nodes_) + ReceiptRule::kEvery : 0;
    const auto rule = [&](int sender, int receiver, std::size_t frames) {
      const bool measures = wants_receipts_ && sender == 0 && receiver == 1;
      return ReceiptRule{frames, measures, std::max(ReceiptRule::kMostAhead, round)};
    };
    for (auto [place, frames] : from) taken_.try_emplace(place, c_, leader_at(place), rule(place, place_, frames));
    for (auto [place, frames] : to) given_.try_emplace(place, c_, leader_at(place), rule(place_, place, frames));
  }
  /// Frames that come far between leave time to sleep for who has nothing to encode or decode. One that looks for
  /// messages instead takes a core from others for nothing, and what messages cost it is not seen.
  void rest_between_frames(Clock::duration since_first, std::size_t frames) {
    if (!direct_ || frames < kFramesToLearn) return;
    const auto each = since_first / frames;
    c_.doze(each < kFarBetween ? Clock::duration::zero() : std::min<Clock::duration>(each / 4, kLongestRest));
  }
  Wire::Form form() const { return direct_ ? Wire::Form::kPieces : Wire::Form::kUpTo; }
  void pass(ConstBytes message, const std::vector<int>& to, Passage& p) {
    for (int place : to) {
      FramesUnderWay& frames = given_.at(place);
      frames.make_room();
      p.sends.push_back(c_.isend({leader_at(place), message}, form()));
      frames.sent(message.size());
    }
  }
  Passage& passage(std::size_t hop) {
    while (passages_.size() <= hop % kept_) passages_.emplace_back();
    return passages_[hop % kept_];
  }
  /// Memory for a message: taken once, used again by the hop that follows kept_ later.
  Bytes room_of(Passage& p) {
    if (p.room.empty()) p.room = c_.scratch(std::max<std::size_t>(plan_.room(), 1));
    return p.room;
  }
  void settle(Passage& p) {
    const auto began = Clock::now();
    c_.wait(p.receive);
    for (Wire::Request& send : p.sends) c_.wait(send);
    p.sends.clear();
    report_.wire_s += seconds_since(began);
  }

  /// Where a frame that goes as it is lies: in a tensor, or copied together.
  Bytes direct_memory(std::size_t frame, Passage& p) {
    const std::vector<Bytes> spans = spans_of_frame(frame);
    if (spans.size() == 1) return spans[0];
    return room_of(p).first(plan_.frames()[frame].bytes);
  }
  std::vector<Bytes> spans_of_frame(std::size_t frame) const {
    const StreamPlan::Frame& f = plan_.frames()[frame];
    std::vector<Bytes> spans;
    for (std::size_t i = f.first; i < f.first + f.chunks; ++i)
      for (const Bytes& span : spans_of(pieces_, plan_.chunks()[i])) {
        const bool continues = !spans.empty() && spans.back().data() + spans.back().size() == span.data();
        if (continues)
          spans.back() = {spans.back().data(), spans.back().size() + span.size()};
        else
          spans.push_back(span);
      }
    return spans;
  }

  // ---- root -------------------------------------------------------------------------------------

  void give(std::size_t i, const Journey& journey) {
    const std::size_t frame = hops_[i].frame;
    Passage& p = passage(i);
    settle(p);
    ConstBytes message;
    result_.clear();
    if (direct_) {
      const Bytes memory = direct_memory(frame, p);
      if (memory.data() == p.room.data()) copy_together(frame, memory);
      message = memory;
    } else {
      if (i > 0) feel_the_link();
      const bool is_news = !std::exchange(knew_link_, c_.learned().link.is_known()) && knew_link_;
      if (i > 0 && (is_news || i % kReconsider == 0)) reconsider(frame, journey);
      message = codec_->encode(frame, room_of(p));
      if (codec_->is_lossy() && (takes_decoded_ || c_.local_size() > 1)) look_at_result(frame, message);
    }
    report_.wire_bytes += message.size();
    moved_bytes_ += message.size() * hops_[i].to.size();
    pass(message, hops_[i].to, p);
    if (wants_receipts_) given_.at(1).look();
  }

  /// All other ranks get the same bits, those on the root's node too.
  void look_at_result(std::size_t frame, ConstBytes message) {
    codec_->fetch(frame);
    result_.resize(plan_.frames()[frame].bytes);
    copy_together(frame, result_);
    codec_->round(frame, message, result_);
    if (takes_decoded_) scatter(result_, spans_of_frame(frame));
  }

  /// While nothing is known of the link few frames are on their way, so that a wrong first choice is soon seen.
  void feel_the_link() {
    while (wants_receipts_ && !c_.learned().link.is_known() && given_.at(1).awaited() >= kFirstFrames)
      given_.at(1).await_receipt();
  }
  /// Once the link is known better than when the codecs were chosen, they are chosen again.
  void reconsider(std::size_t frame, Journey journey) {
    const double speed = c_.learned().link.bytes_per_s();
    if (speed > 0.8 * considered_ && speed < 1.25 * considered_) return;
    // What such streams took is known better than what the model makes of the link.
    if (codec_->chooser().has_seen(codec_->choices())) return;
    considered_ = speed;
    is_as_chosen_ = false;
    journey.link_bytes_per_s = speed;
    journey.bytes = 0;
    for (std::size_t i = frame; i < plan_.frames().size(); ++i)
      journey.bytes += static_cast<double>(plan_.frames()[i].bytes);
    codec_->choose(frame, journey);
  }

  /// The node that comes last has it all: that is when a stream ends. Leaders have met at about the same time, so it
  /// knows how long that took. Root hears of it with the signatures of its next stream, and need not wait for a
  /// message.
  void note_time(Clock::duration since_met) {
    c_.learned().took_ns[root_] = static_cast<std::uint64_t>(std::chrono::nanoseconds(since_met).count());
  }

  static void scatter(ConstBytes from, const std::vector<Bytes>& spans) {
    const std::byte* at = from.data();
    for (const Bytes& span : spans) {
      std::memcpy(span.data(), at, span.size());
      at += span.size();
    }
  }
  void copy_together(std::size_t frame, Bytes memory) {
    std::byte* at = memory.data();
    for (const Bytes& span : spans_of_frame(frame)) {
      std::memcpy(at, span.data(), span.size());
      at += span.size();
    }
  }

  // ---- other leaders ----------------------------------------------------------------------------

  void post(std::size_t i) {
    Passage& p = passage(i);
    settle(p);
    const std::size_t frame = hops_[i].frame;
    const int from = leader_at(hops_[i].from);
    p.receive = c_.irecv({from, direct_ ? direct_memory(frame, p) : room_of(p)}, form());
  }

  void take(std::size_t i) {
    while (posted_ < hops_.size() && posted_ < i + kAhead) post(posted_++);
    const std::size_t frame = hops_[i].frame;
    Passage& p = passage(i);
    const auto began = Clock::now();
    c_.wait(p.receive);
    report_.wire_s += seconds_since(began);
    const Bytes memory = direct_ ? direct_memory(frame, p) : p.room.first(p.receive.bytes);
    report_.wire_bytes += memory.size();
    moved_bytes_ += memory.size() * (1 + hops_[i].to.size());
    pass(memory, hops_[i].to, p);
    if (!direct_)
      decode(frame, memory);
    else if (memory.data() == p.room.data())
      scatter(memory, spans_of_frame(frame));
    taken_.at(hops_[i].from).count();
  }

  void decode(std::size_t frame, ConstBytes message) {
    codec_->decode(frame, message);
    if (codec_->needs_device() && c_.local_size() > 1) codec_->fetch_decoded(frame);  // for those who have it from here
  }

  // ---- on the node ------------------------------------------------------------------------------

  void hand_over(std::size_t frame) {
    const auto began = Clock::now();
    const bool from_result = leads_ && !result_.empty();
    if (leads_ && place_ == 0 && codec_ && !from_result) codec_->fetch(frame);
    bcast_on_node(c_, from_result ? std::vector<Bytes>{result_} : spans_of_frame(frame),
                  c_.topology().local_of(leader_), plan_.bytes());
    report_.node_s += seconds_since(began);
  }

  static constexpr std::size_t kAhead = ReceiptRule::kMostAhead;  // receives posted before their frame is needed
  static constexpr std::size_t kReconsider = 16, kFirstFrames = 3, kFramesToLearn = 8;
  // A sleep takes some 50 us longer than it was meant to.
  static constexpr std::chrono::microseconds kFarBetween{150}, kLongestRest{200};

  Context& c_;
  const std::vector<Piece>& pieces_;
  const StreamPlan& plan_;
  StreamCodec* codec_;
  StreamReport& report_;
  const bool takes_decoded_;
  const int root_node_, nodes_, place_, root_, leader_;
  const bool leads_, goes_round_;
  const std::vector<Hop> hops_;
  // Frames that may be on their way to the next nodes at once: on a ring those of a whole round, of which the second
  // node behind root waits first for the last.
  const std::size_t kept_ = goes_round_ ? std::max<std::size_t>(16, nodes_) : 16;
  bool direct_, wants_receipts_ = false;
  bool is_as_chosen_ = true;  // all of it with the codecs that were chosen before its first frame
  std::vector<Passage> passages_;
  std::size_t posted_ = 0, moved_bytes_ = 0;  // moved: received and sent
  bool knew_link_ = false;
  double considered_ = 0;
  std::map<int, FramesTaken> taken_;     // by the place that they come from
  std::map<int, FramesUnderWay> given_;  // by the place that they go to
  std::vector<std::byte> result_;        // root: a lossy frame as the others get it
};

}  // namespace accdp
