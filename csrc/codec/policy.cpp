#include "codec/policy.hpp"

#include <algorithm>

namespace accdp {
namespace {

constexpr double kWorthIt = 0.95;

}  // namespace

double plain_seconds(const Journey& j) noexcept {
  const double fill = (j.links - 1) * std::min(j.chunk_bytes, j.bytes) / j.link_bytes_per_s;
  return j.bytes / j.link_bytes_per_s + fill + j.links * j.link_latency_s;
}

double encoded_seconds(const Journey& j, const CodecCost& c) noexcept {
  const double chunk = std::min(j.chunk_bytes, j.bytes);
  const double link = 1 / (c.ratio * j.link_bytes_per_s), message = j.message_s_per_byte / c.ratio;
  // The slowest stage sets the pace: the root's thread, the link, or that of a node which receives, passes on and
  // decodes. The first chunk goes through all of them.
  const double pace =
      std::max({1 / c.encode_bytes_per_s + message, link, 1 / c.decode_bytes_per_s + (j.links > 1 ? 2 : 1) * message});
  const double first = chunk * (1 / c.encode_bytes_per_s + 1 / c.decode_bytes_per_s + j.links * link);
  return (j.bytes - chunk) * pace + first + j.links * j.link_latency_s;
}

int choose_codec(const Journey& journey, std::span<const CodecCost> codecs) noexcept {
  int best = -1;
  double least = plain_seconds(journey) * journey.plain_slowdown * kWorthIt;
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    const double seconds = encoded_seconds(journey, codecs[i]) * journey.encoded_slowdown;
    if (seconds >= least) continue;
    least = seconds;
    best = static_cast<int>(i);
  }
  return best;
}

}  // namespace accdp
