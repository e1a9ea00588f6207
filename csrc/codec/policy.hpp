#pragma once
#include <cstddef>
#include <span>

namespace accdp {

/// What a codec does to the data at hand.
struct CodecCost {
  double ratio;  ///< bytes before / bytes after
  double encode_bytes_per_s, decode_bytes_per_s;
};

/// A broadcast that is about to go: how much, in what pieces, over how many links of what speed.
struct Journey {
  double bytes;
  double chunk_bytes;
  int links;  ///< one after the other
  double link_bytes_per_s, link_latency_s;
  /// What a rank's own thread does for a byte that it sends or receives; it encodes and decodes beside that.
  double message_s_per_byte = 0.4e-9;
  /// How much longer it took than predicted before.
  double plain_slowdown = 1, encoded_slowdown = 1;
};

/// Predicted seconds, slowdown left out, until the last node has all of it, in a chain whose stages overlap.
double plain_seconds(const Journey& journey) noexcept;
double encoded_seconds(const Journey& journey, const CodecCost& codec) noexcept;

/// Index of the codec that is predicted to be fastest, -1 for none: a codec must gain 5 %, because a wrong guess the
/// other way costs more than the gain.
int choose_codec(const Journey& journey, std::span<const CodecCost> codecs) noexcept;

}  // namespace accdp
