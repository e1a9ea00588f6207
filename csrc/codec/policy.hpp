#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace accdp {

/// What a codec does to the data at hand.
struct CodecCost {
  double ratio;  ///< bytes before / bytes after
  double encode_bytes_per_s, decode_bytes_per_s;
  double encode_call_s = 0, decode_call_s = 0;  ///< per chunk, or per run of a device, on top
  /// What a device encodes, or decodes, at once, beside the rank's thread; 0: the thread does it, chunk by chunk.
  double encode_run_bytes = 0, decode_run_bytes = 0;
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
  /// What encoding and decoding in the host take besides the codec: differences to a reference.
  double transform_s_per_byte = 0;
  /// Of an allreduce: how often its thread encodes, and decodes, for each byte that it sends; it receives as many. 0: a
  /// broadcast, in which one thread encodes and each of the others decodes.
  double own_encodes = 0, own_decodes = 0;
  /// Of an allreduce: what its thread does besides for each byte that it sends, encoded or not: copies and sums.
  double own_work_s_per_byte = 0;
  /// Of an allreduce that as it is goes by so many times as many threads: what each of these does besides.
  double plain_threads = 1, plain_work_s_per_byte = 0;
};

/// What one of `lanes` threads of each of `nodes` nodes does in an allreduce. `message` is the whole of it, with a
/// node's link and cores. Each node owns a part: it encodes its shares of the others' parts and the sum of its own, and
/// decodes the others' shares of its own part and their sums.
Journey allreduce_journey(const Journey& message, int nodes, int lanes) noexcept;

/// Predicted seconds until the last node has all of it: a chain, or an allreduce, whose stages overlap.
double plain_seconds(const Journey& journey) noexcept;
double encoded_seconds(const Journey& journey, const CodecCost& codec) noexcept;

/// Index of the codec that is predicted to be fastest, -1 for none: a codec must gain 2 %, about what predictions may
/// be off where they are good. Of codecs that are as fast within 1 %, the one that computes least.
int choose_codec(const Journey& journey, std::span<const CodecCost> codecs) noexcept;

/// Seconds to encode and decode a sample, by what is known of the codec.
double sampling_seconds(const CodecCost& codec, double bytes) noexcept;

/// What trying codecs on the data may cost: a part of what the operation takes by the best way that is known so far, so
/// that a codec that makes it short also ends the search for a better one.
class SamplingBudget {
 public:
  /// Half of what a choice by itself may cost against knowing the best one; the other half is for wrong predictions.
  static constexpr double kShare = 0.025;

  explicit SamplingBudget(double plain_s, double share = kShare) : best_s_(plain_s), share_(share) {}
  bool allows(double seconds) const { return spent_s_ + seconds <= share_ * best_s_; }
  void spend(double seconds) { spent_s_ += seconds; }
  void found(double predicted_s) { best_s_ = std::min(best_s_, predicted_s); }
  /// What may still be spent; below 0 where too much was.
  double left() const { return share_ * best_s_ - spent_s_; }
  /// What most operations give when nothing was left over before.
  double usual() const { return kShare * best_s_; }
  /// Whether something that was predicted to take so long, by a sample of so many bytes, cannot turn out to be the
  /// best any more. Short samples say little: codecs take a while to get into their stride.
  bool is_hopeless(double predicted_s, std::size_t sample_bytes) const {
    const double off = std::cbrt(65536.0 / static_cast<double>(sample_bytes));
    return predicted_s > 1.5 * std::max(1.0, off) * best_s_;
  }

 private:
  double best_s_, share_, spent_s_ = 0;
};

}  // namespace accdp
