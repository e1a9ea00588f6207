#include "codec/policy.hpp"

#include <algorithm>

namespace accdp {
namespace {

constexpr double kWorthIt = 0.98, kAsFast = 1.01;
// Speeds are measured on samples in the cache; a stream comes from memory and goes there.
constexpr double kMemorySecondsPerByte = 0.1e-9;
// For each encoded byte that comes from a device or goes there: the thread checks it and copies it once.
constexpr double kFrameSecondsPerByte = 0.2e-9;

bool is_allreduce(const Journey& j) noexcept { return j.own_encodes > 0; }

/// Seconds per raw byte of a computing stage: of the rank's thread, and of its device, which works beside it.
struct Stage {
  double thread, device;
  double first_s;  // until the next stage can begin: a chunk of the thread's work, a run of the device's
  double seconds() const { return thread + device; }
};
struct Stages {
  Stage encode, decode;
};
Stages stages(const Journey& j, const CodecCost& c, double chunk) noexcept {
  const auto stage = [&](double bytes_per_s, double call_s, double run_bytes) -> Stage {
    if (run_bytes == 0) {
      const double each = 1 / bytes_per_s + call_s / chunk + kMemorySecondsPerByte + j.transform_s_per_byte;
      return {each, 0, each * chunk};
    }
    // Every sum of an allreduce is a run by itself.
    const double run = is_allreduce(j) ? chunk : std::max(std::min(run_bytes, j.bytes), chunk);
    const double frame = kFrameSecondsPerByte / c.ratio, each = 1 / bytes_per_s + call_s / run;
    return {frame, each, frame * chunk + each * run};
  };
  return {stage(c.encode_bytes_per_s, c.encode_call_s, c.encode_run_bytes),
          stage(c.decode_bytes_per_s, c.decode_call_s, c.decode_run_bytes)};
}

/// Seconds per raw byte of the slowest stage: the root's thread, the link, the thread of a node that receives, passes
/// on and decodes, a device beside one of them; or of all threads together on the cores that they share.
double pace(const Journey& j, double ratio, const Stages& computing) noexcept {
  const double message = j.message_s_per_byte / ratio, link = 1 / (ratio * j.link_bytes_per_s);
  if (is_allreduce(j)) {  // all threads do the same
    const auto both = [&](double encode, double decode) { return j.own_encodes * encode + j.own_decodes * decode; };
    const double thread = both(computing.encode.thread, computing.decode.thread) + 2 * message + j.own_work_s_per_byte;
    const double device = both(computing.encode.device, computing.decode.device);
    return std::max({link, thread / std::min(j.cores, 1.0), device});
  }
  const double root = computing.encode.thread + message;
  const double node = computing.decode.thread + (j.links > 1 ? 2 : 1) * message;
  const double all = computing.encode.thread + j.links * computing.decode.thread + 2 * j.links * message;
  return std::max(
      {root, link, node, all / ((j.links + 1) * j.cores), computing.encode.device, computing.decode.device});
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

double plain_seconds(const Journey& encoded) noexcept {
  Journey j = encoded;
  if (j.plain_threads != 1) {
    j.bytes /= j.plain_threads;
    j.link_bytes_per_s /= j.plain_threads;
    j.cores /= j.plain_threads;
    j.own_work_s_per_byte = j.plain_work_s_per_byte;
  }
  const double fill = (j.links - 1) * std::min(j.chunk_bytes, j.bytes) / j.link_bytes_per_s;
  return j.bytes * pace(j, 1, {}) + fill + j.links * j.link_latency_s;
}

double encoded_seconds(const Journey& j, const CodecCost& c) noexcept {
  const double chunk = std::min(j.chunk_bytes, j.bytes);
  const Stages computing = stages(j, c, std::max(chunk, 1.0));
  // The first chunk goes through all stages.
  const double first =
      computing.encode.first_s + computing.decode.first_s + chunk * j.links / (c.ratio * j.link_bytes_per_s);
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
    const double mine = computing.encode.seconds() + journey.links * computing.decode.seconds();
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
