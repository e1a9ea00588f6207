#include "coll/sum_journey.hpp"

#include <algorithm>

namespace accdp {

int encoding_lanes(std::size_t bytes, const Shape& shape, const Machine& m) {
  const int lanes = lanes_for(bytes, shape, m);
  const std::size_t share = shape.slot_bytes / (std::size_t(shape.nodes) * lanes);
  return share >= std::min(kLeastEncodedFrame, shape.slot_bytes / 4) ? lanes : 1;
}

Journey sum_journey(const Journey& message, const Shape& shape, const Machine& m) {
  const auto bytes = static_cast<std::size_t>(message.bytes);
  const int encoding = encoding_lanes(bytes, shape, m), plain = lanes_for(bytes, shape, m);
  const auto work = [&](int lanes) {
    const double sent = allreduce_journey(message, shape.nodes, lanes).bytes;
    return pipeline_work_seconds(bytes, shape, m, lanes) / std::max(sent, 1.0);
  };
  Journey journey = allreduce_journey(message, shape.nodes, encoding);
  journey.own_work_s_per_byte = work(encoding);
  journey.plain_threads = static_cast<double>(plain) / encoding;
  journey.plain_work_s_per_byte = work(plain);
  return journey;
}

}  // namespace accdp
