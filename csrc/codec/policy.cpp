#include "codec/policy.hpp"

#include <algorithm>

namespace accdp {
namespace {

constexpr double kWorthIt = 0.98, kAsFast = 1.01;
// Speeds are measured on samples in the cache; a stream comes from memory and goes there.
constexpr double kMemorySecondsPerByte = 0.1e-9;

/// Seconds per raw byte of the two computing stages.
struct Stages {
  double encode, decode;
};
Stages stages(const Journey& j, const CodecCost& c, double chunk) noexcept {
  const double besides = kMemorySecondsPerByte + j.transform_s_per_byte;
  return {1 / c.encode_bytes_per_s + c.encode_call_s / chunk + besides,
          1 / c.decode_bytes_per_s + c.decode_call_s / chunk + besides};
}

bool is_allreduce(const Journey& j) noexcept { return j.own_encodes > 0; }

/// Seconds per raw byte of the slowest stage: the root's thread, the link, the thread of a node that receives, passes
/// on and decodes; or of all threads together on the cores that they share.
double pace(const Journey& j, double ratio, const Stages& computing) noexcept {
  const double message = j.message_s_per_byte / ratio, link = 1 / (ratio * j.link_bytes_per_s);
  if (is_allreduce(j)) {  // all threads do the same
    const double thread =
        j.own_encodes * computing.encode + j.own_decodes * computing.decode + 2 * message + j.own_work_s_per_byte;
    return std::max(link, thread / std::min(j.cores, 1.0));
  }
  const double root = computing.encode + message;
  const double node = computing.decode + (j.links > 1 ? 2 : 1) * message;
  const double all = computing.encode + j.links * computing.decode + 2 * j.links * message;
  return std::max({root, link, node, all / ((j.links + 1) * j.cores)});
}

}  // namespace

Journey allreduce_journey(const Journey& message, int nodes, int lanes) noexcept {
  const double sent = 2.0 * (nodes - 1) / nodes;  // of each byte: a share, and of its sum
  Journey journey = message;
  journey.bytes *= sent / lanes;
  journey.link_bytes_per_s /= lanes;
  journey.cores /= lanes;
  journey.own_encodes = 1 / sent;
  journey.own_decodes = 1;
  return journey;
}

double plain_seconds(const Journey& j) noexcept {
  const double fill = (j.links - 1) * std::min(j.chunk_bytes, j.bytes) / j.link_bytes_per_s;
  return j.bytes * pace(j, 1, {0, 0}) + fill + j.links * j.link_latency_s;
}

double encoded_seconds(const Journey& j, const CodecCost& c) noexcept {
  const double chunk = std::min(j.chunk_bytes, j.bytes);
  const Stages computing = stages(j, c, std::max(chunk, 1.0));
  // The first chunk goes through all stages.
  const double first = chunk * (computing.encode + computing.decode + j.links / (c.ratio * j.link_bytes_per_s));
  return (j.bytes - chunk) * pace(j, c.ratio, computing) + first + j.links * j.link_latency_s;
}

int choose_codec(const Journey& journey, std::span<const CodecCost> codecs) noexcept {
  const double most = plain_seconds(journey) * kWorthIt;
  double least = most;
  for (const CodecCost& codec : codecs) least = std::min(least, encoded_seconds(journey, codec));
  int best = -1;
  double work = 0;
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    const double seconds = encoded_seconds(journey, codecs[i]);
    if (seconds >= most || seconds > least * kAsFast) continue;
    const Stages computing = stages(journey, codecs[i], journey.chunk_bytes);
    const double mine = computing.encode + journey.links * computing.decode;
    if (best >= 0 && mine >= work) continue;
    work = mine;
    best = static_cast<int>(i);
  }
  return best;
}

double sampling_seconds(const CodecCost& c, double bytes) noexcept {
  return c.encode_call_s + c.decode_call_s + bytes / c.encode_bytes_per_s + bytes / c.decode_bytes_per_s;
}

}  // namespace accdp
