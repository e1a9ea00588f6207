#pragma once
#include <cstdint>
#include <map>

#include "codec/experience.hpp"
#include "coll/link_meter.hpp"

namespace accdp {

/// What a group's compressed operations have taught this rank so far: of links, of codecs, of what others do on their
/// devices. For one collective at a time.
struct Learned {
  LinkMeter link;  ///< to other nodes
  MessageCost message_cost;
  Experiences bcasts;  ///< of broadcasts from this rank
  KindsOfSums sums;    ///< rank 0: of compressed allreduces
  /// By root: of its last broadcast, of which this rank was the last to have all, and has not told yet; else 0.
  std::map<int, std::uint64_t> took_ns;
  bool receivers_decode_on_device = true;  ///< all who decoded this rank's last broadcast did
  bool node_sums_on_device = true;         ///< the node's ranks did in the last compressed allreduce from devices
};

}  // namespace accdp
