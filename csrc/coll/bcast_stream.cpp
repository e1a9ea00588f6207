// Broadcast over nodes, as a stream of frames. For each frame:
//   1. leaders only (root on its own node): receive the frame, pass it on as it came (schedule.hpp says from and to
//      whom), then decode it; the root encodes the next frame while this one travels;
//   2. on the node: the leader hands the decoded frame to the others through shared memory.
// Whether frames have heads (encoded) or are the tensors' memory itself (direct), the root has told with its signature.
// On one node a frame goes through the slot, and each rank decodes it.
// Cost, chain: ceil(S/c) + nodes - 2 frames over the slowest of encoding, link and decoding.
#include "coll/bcast_stream.hpp"

#include <algorithm>
#include <utility>

#include "coll/algorithms.hpp"
#include "coll/frames_between_nodes.hpp"
#include "coll/mpi_baselines.hpp"

namespace accdp {
namespace {

/// Tensors for which no codec is chosen, with no reference that all ranks must have compared before anything is
/// written.
bool goes_with_signatures(const Context& c, const std::vector<Piece>& pieces, std::size_t bytes) {
  const auto is_new = [](const Piece& piece) { return piece.reference.empty(); };
  return !c.has_met() && bytes < StreamCodec::kTooSmall && bcasts_with_signatures(bytes, c.shape()) &&
         std::all_of(pieces.begin(), pieces.end(), is_new);
}

BcastAlgorithm algorithm_for(BcastAlgorithm asked, const Context& c, const StreamPlan& plan) {
  if (asked != BcastAlgorithm::kAuto) return asked;
  // All ranks must choose alike, so not by what one of them measured.
  return choose_bcast(c.shape().nodes, plan.frames().size(), static_cast<double>(plan.bytes()), c.machine().link);
}

/// Whether receivers get frames as the root encoded them, if it encodes any.
bool goes_encoded_from_root(const StreamOptions& options, const Topology& t) {
  if (options.algorithm == BcastAlgorithm::kMpi || options.algorithm == BcastAlgorithm::kP2pCompressed) return false;
  return t.nodes() > 1 || !options.automatic;
}

/// One broadcast, in this rank's place.
class BcastStream {
 public:
  BcastStream(Context& c, const std::vector<Piece>& pieces, int root, const StreamOptions& asked)
      : c_(c),
        pieces_(pieces),
        root_(root),
        plan_(pieces, frame_bytes(asked.chunk_bytes, c.shape())),
        plain_(asked.automatic ? plan_.bytes() < StreamCodec::kTooSmall : !asked.codec),
        asked_(asked),
        options_(settled_options()),
        codec_(c.signature(), pieces, plan_, options_, report_),
        shares_decoded_(t_.nodes() > 1 && c.local_size() > 1),
        is_coded_here_(t_.nodes() == 1 || t_.leader(t_.node(), root) == t_.rank()) {}

  StreamReport run() {
    report_.logical_bytes = plan_.bytes();
    if (asked_.on_device && !options_.on_device) fetch_all();
    codec_.decode_on_device(!shares_decoded_);
    if (codec_.needs_device() && is_coded_here_ && !codec_.is_for_device()) c_.tell(kNeedsStandIn);
    go();
    if (options_.on_device) options_.on_device->finish();
    codec_.finish_report();
    report_.total_s = seconds_since(began_);
    return report_;
  }

 private:
  StreamOptions settled_options() const {
    StreamOptions options = asked_;
    const bool goes_encoded = goes_encoded_from_root(asked_, t_);
    if (options.codec && options.codec->stand_in && !goes_encoded) options.codec = options.codec->stand_in;
    if (plain_ || !goes_encoded) options.on_device = nullptr;
    options.encodes_on_device = true;
    options.decodes_on_device = c_.learned().receivers_decode_on_device;
    return options;
  }
  /// What does not go as frames of a codec goes from and to the host.
  void fetch_all() {
    std::vector<ConstBytes> wanted;
    for (const Piece& piece : pieces_) {
      wanted.push_back(piece.reference);
      if (t_.rank() == root_) wanted.push_back(piece.data);
    }
    asked_.on_device->fetch(wanted);
  }
  void go() {
    if (options_.algorithm == BcastAlgorithm::kMpi) return by_mpi();
    if (t_.nodes() == 1) return plain_ || options_.automatic ? by_memory() : encoded_on_node();
    if (plain_ && options_.algorithm == BcastAlgorithm::kAuto && goes_with_signatures(c_, pieces_, plan_.bytes()))
      return with_signatures();
    between_nodes(algorithm_for(*options_.algorithm, c_, plan_));
  }
  void by_mpi() {
    report_.algorithm = name_of(BcastAlgorithm::kMpi);
    c_.note({name_of(BcastAlgorithm::kMpi), 1, plan_.bytes()});
    c_.meet_everywhere();
    for (const Piece& piece : pieces_) bcast_by_mpi(c_, piece.data, root_);
    report_.wire_bytes = plan_.bytes();
  }
  void by_memory() {
    bcast_on_node(c_, spans_of(pieces_), t_.local_of(root_));  // memory is faster than any codec
    report_.wire_bytes = t_.size() > 1 ? plan_.bytes() : 0;
  }
  void encoded_on_node() {
    if (codec_.needs_device()) c_.meet();
    settle_codec();
    bcast_encoded_on_node(c_, plan_, root_, codec_, options_.root_takes_decoded, report_);
  }
  void with_signatures() {
    bcast_with_signatures(c_, spans_of(pieces_), root_);
    report_.algorithm = kWithSignatures;
    report_.wire_bytes = plan_.bytes();
  }
  void between_nodes(BcastAlgorithm algorithm) {
    report_.algorithm = name_of(algorithm);
    c_.note({name_of(algorithm), 1, std::min(plan_.chunk_bytes(), plan_.bytes())});
    const Journey ahead = journey();
    const bool by_message = algorithm == BcastAlgorithm::kP2pCompressed;
    FramesBetweenNodes stream(c_, pieces_, plan_, root_, algorithm, plain_ ? nullptr : &codec_,
                              options_.root_takes_decoded, report_);
    if (t_.rank() == root_ && !by_message) c_.tell(stream.decide(ahead));
    if (!plain_ && !by_message) c_.tell(std::exchange(c_.learned().took_ns[root_], 0) << kTimeAt);
    if (!t_.is_near(root_) && !(asked_.on_device && !shares_decoded_)) c_.tell(kDecodesInHost);
    const auto meeting = Clock::now();
    c_.meet();
    if (t_.is_leader()) c_.learned().link.note_exchange(seconds_since(meeting) / meeting_rounds(c_.shape()));
    if (is_coded_here_) settle_codec();
    if (by_message)
      bcast_p2p_compressed(c_, pieces_, plan_, root_, options_, ahead, report_);
    else
      stream.run(ahead);
    if (t_.rank() == root_ && !by_message) stream.hear();
  }
  Journey journey() const {
    return {static_cast<double>(plan_.bytes()), static_cast<double>(plan_.chunk_bytes()), t_.nodes() - 1,
            // Unknown, rather too slow: an encoded stream measures it and may change, a direct one cannot.
            c_.learned().link.is_known() ? c_.learned().link.bytes_per_s() : c_.learned().link.bytes_per_s() / 2,
            c_.learned().link.latency_s(), c_.learned().message_cost.seconds_per_byte(), c_.cores_per_node()};
  }
  /// After all have met: with the codec asked for where all that encode or decode have it.
  void settle_codec() {
    if (!codec_.needs_device()) return;
    if (c_.await_told() & kNeedsStandIn) codec_.stand_in();
    codec_.decode_on_device(!shares_decoded_ || codec_.needs_device());
  }

  const Clock::time_point began_ = Clock::now();
  Context& c_;
  const Topology& t_ = c_.topology();
  const std::vector<Piece>& pieces_;
  const int root_;
  const StreamPlan plan_;
  const bool plain_;  // too little for a codec goes as if none had been asked for, and all ranks know that it does
  const StreamOptions& asked_;
  const StreamOptions options_;
  StreamReport report_;
  StreamCodec codec_;
  const bool shares_decoded_;  // with ranks of its node, which want it in the host
  const bool is_coded_here_;
};

}  // namespace

StreamReport bcast_stream(Context& c, const std::vector<Piece>& pieces, int root, const StreamOptions& asked) {
  return BcastStream(c, pieces, root, asked).run();
}

StreamOptions plain_stream(const Asked& asked) {
  StreamOptions options{.automatic = false, .chunk_bytes = asked.stream_chunk_bytes, .algorithm = asked.bcast};
  if (asked.bcast == BcastAlgorithm::kP2pCompressed) options.algorithm = BcastAlgorithm::kBinomial;
  return options;
}

void bcast_between_nodes(Context& c, Bytes data, int root) { bcast_stream(c, {{data}}, root, plain_stream(c.asked())); }

}  // namespace accdp
