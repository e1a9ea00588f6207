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

using Seconds = std::chrono::duration<double>;

/// All tensors one after the other through shared memory, without copies beyond the slot.
std::vector<Bytes> memory_of(const std::vector<Piece>& pieces) {
  std::vector<Bytes> spans;
  for (const Piece& piece : pieces) spans.push_back(piece.data);
  return spans;
}

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

/// After all have met: with the codec asked for where all that encode or decode have it.
void settle(Context& c, StreamCodec& codec, bool decodes_far) {
  if (!codec.needs_device()) return;
  if (c.await_told() & kNeedsStandIn) codec.stand_in();
  codec.decode_far(decodes_far || codec.needs_device());
}

/// Whether receivers get frames as the root encoded them, if it encodes any.
bool goes_encoded_from_root(const StreamOptions& options, const Topology& t) {
  if (options.algorithm == BcastAlgorithm::kMpi || options.algorithm == BcastAlgorithm::kP2pCompressed) return false;
  return t.nodes() > 1 || !options.automatic;
}

}  // namespace

StreamReport bcast_stream(Context& c, const std::vector<Piece>& pieces, int root, const StreamOptions& asked) {
  const auto began = Clock::now();
  const Topology& t = c.topology();
  StreamReport report;
  const StreamPlan plan(pieces, frame_bytes(asked.chunk_bytes, c.shape()));
  report.logical_bytes = plan.bytes();
  // What is too little for a codec goes as if none had been asked for, and all ranks know that it does.
  const bool plain = asked.automatic ? plan.bytes() < StreamCodec::kTooSmall : !asked.codec;
  StreamOptions options = asked;
  if (options.codec && options.codec->stand_in && !goes_encoded_from_root(options, t))
    options.codec = options.codec->stand_in;
  if (options.far && (plain || !goes_encoded_from_root(options, t))) {
    std::vector<ConstBytes> wanted;
    for (const Piece& piece : pieces) {
      wanted.push_back(piece.reference);
      if (t.rank() == root) wanted.push_back(piece.data);
    }
    options.far->fetch(wanted);
    options.far = nullptr;
  }
  options.encodes_far = true;
  options.decodes_far = c.receivers_decode_far();
  StreamCodec codec(OpKind::kBcastCompressed, pieces, plan, options, c.signature().sequence, c.signature().check,
                    report);
  // Ranks that share what their leader decodes want it in the host.
  const bool decodes_far = t.nodes() == 1 || c.local_size() == 1;
  codec.decode_far(decodes_far);
  const bool is_coded_here = t.nodes() == 1 || t.leader(t.node(), root) == t.rank();
  if (codec.needs_device() && is_coded_here && !codec.is_for_device()) c.tell(kNeedsStandIn);
  if (options.algorithm == BcastAlgorithm::kMpi) {
    report.algorithm = name_of(BcastAlgorithm::kMpi);
    c.note({name_of(BcastAlgorithm::kMpi), 1, plan.bytes()});
    c.meet_everywhere();
    for (const Piece& piece : pieces) bcast_by_mpi(c, piece.data, root);
    report.wire_bytes = plan.bytes();
  } else if (t.nodes() == 1 && (plain || options.automatic)) {
    bcast_on_node(c, memory_of(pieces), t.local_of(root));  // memory is faster than any codec
    report.wire_bytes = t.size() > 1 ? plan.bytes() : 0;
  } else if (t.nodes() == 1) {
    if (codec.needs_device()) c.meet();
    settle(c, codec, decodes_far);
    bcast_encoded_on_node(c, plan, root, codec, options.root_takes_decoded, report);
  } else if (plain && options.algorithm == BcastAlgorithm::kAuto && goes_with_signatures(c, pieces, plan.bytes())) {
    bcast_with_signatures(c, memory_of(pieces), root);
    report.algorithm = kWithSignatures;
    report.wire_bytes = plan.bytes();
  } else {
    const BcastAlgorithm algorithm = algorithm_for(*options.algorithm, c, plan);
    report.algorithm = name_of(algorithm);
    c.note({name_of(algorithm), 1, std::min(plan.chunk_bytes(), plan.bytes())});
    const Journey journey{
        static_cast<double>(plan.bytes()), static_cast<double>(plan.chunk_bytes()), t.nodes() - 1,
        // Unknown, rather too slow: an encoded stream measures it and may change, a direct one cannot.
        c.link().is_known() ? c.link().bytes_per_s() : c.link().bytes_per_s() / 2, c.link().latency_s(),
        c.message_cost().seconds_per_byte(), c.cores_per_node()};
    const bool by_message = algorithm == BcastAlgorithm::kP2pCompressed;
    FramesBetweenNodes stream(c, pieces, plan, root, algorithm, plain ? nullptr : &codec, options.root_takes_decoded,
                              report);
    if (t.rank() == root && !by_message) c.tell(stream.decide(journey));
    if (!plain && !by_message) c.tell(std::exchange(c.took_ns(root), 0) << kTimeAt);
    if (!t.is_near(root) && !(asked.far && decodes_far)) c.tell(kDecodesInHost);
    const auto meeting = Clock::now();
    c.meet();
    if (t.is_leader()) c.link().note_exchange(Seconds(Clock::now() - meeting).count() / meeting_rounds(c.shape()));
    if (is_coded_here) settle(c, codec, decodes_far);
    if (by_message)
      bcast_p2p_compressed(c, pieces, plan, root, options, journey, report);
    else
      stream.run(journey);
    if (t.rank() == root && !by_message) stream.hear();
  }
  if (options.far) options.far->finish();
  codec.finish_report();
  report.total_s = Seconds(Clock::now() - began).count();
  return report;
}

StreamOptions plain_stream(const Asked& asked) {
  StreamOptions options{.automatic = false, .chunk_bytes = asked.stream_chunk_bytes, .algorithm = asked.bcast};
  if (asked.bcast == BcastAlgorithm::kP2pCompressed) options.algorithm = BcastAlgorithm::kBinomial;
  return options;
}

void bcast_between_nodes(Context& c, Bytes data, int root) { bcast_stream(c, {{data}}, root, plain_stream(c.asked())); }

}  // namespace accdp
