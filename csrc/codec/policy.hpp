#pragma once
#include <cstddef>
#include <span>

namespace accdp {

/// What a codec does to the data at hand.
struct CodecCost {
  double ratio;  ///< bytes before / bytes after
  double encode_bytes_per_s, decode_bytes_per_s;
  double encode_call_s = 0, decode_call_s = 0;  ///< per chunk, on top
};

/// A stream that is about to go: how much, in what pieces, over how many links of what speed. A broadcast, or a node's
/// part of an allreduce.
struct Journey {
  double bytes;
  double chunk_bytes;
  int links;  ///< one after the other
  double link_bytes_per_s, link_latency_s;
  /// What a rank's own thread does for a byte that it sends or receives; it encodes and decodes beside that.
  double message_s_per_byte = 0.4e-9;
  /// Cores for each node's thread; below 1 where nodes are containers that share a machine.
  double cores = 1;
  /// What encoding and decoding take besides the codec: differences to a reference.
  double transform_s_per_byte = 0;
  /// Of an allreduce: how often its thread encodes, and decodes, for each byte that it sends; it receives as many. 0: a
  /// broadcast, in which one thread encodes and each of the others decodes.
  double own_encodes = 0, own_decodes = 0;
  /// Of an allreduce: what its thread does besides for each byte that it sends, encoded or not: copies and sums.
  double own_work_s_per_byte = 0;
};

/// What one of `lanes` threads of each of `nodes` nodes does in an allreduce. `message` is the whole of it, with a
/// node's link and cores. Each node owns a part: it encodes its shares of the others' parts and the sum of its own, and
/// decodes the others' shares of its own part and their sums.
Journey allreduce_journey(const Journey& message, int nodes, int lanes) noexcept;

/// Predicted seconds until the last node has all of it: a chain, or an allreduce, whose stages overlap.
double plain_seconds(const Journey& journey) noexcept;
double encoded_seconds(const Journey& journey, const CodecCost& codec) noexcept;

/// Index of the codec that is predicted to be fastest, -1 for none: a codec must gain 5 %, because a wrong guess the
/// other way costs more than the gain. Of codecs that are as fast within 1 %, the one that computes least.
int choose_codec(const Journey& journey, std::span<const CodecCost> codecs) noexcept;

/// How much of the data may be tried on how many codecs.
struct SamplingPlan {
  std::size_t codecs;  ///< the first ones of the list
  std::size_t bytes;   ///< on each of them; 0 where codecs is 0
};

/// Trying codecs must cost little beside sending: less than `budget_s` in all. `codecs` begins with the cheapest to
/// try; rather fewer codecs than less than `least` bytes each, and never more than `most`.
SamplingPlan plan_sampling(std::span<const CodecCost> codecs, double budget_s, std::size_t least,
                           std::size_t most) noexcept;
/// Seconds to encode and decode a sample, by what is known of the codec.
double sampling_seconds(const CodecCost& codec, double bytes) noexcept;

/// The part of a broadcast's time that may go into choosing its codec.
constexpr double kSamplingShare = 0.015;

}  // namespace accdp
