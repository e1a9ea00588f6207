#pragma once
#include <algorithm>
#include <cstddef>

#include "base/rounding.hpp"
#include "coll/cost.hpp"

namespace accdp {

// How messages are cut that leaders hold whole. Pure arithmetic.

/// Bytes of a piece of a long message, so that little memory is needed for what other leaders sent.
inline std::size_t leader_piece_bytes(ReduceAlgorithm algorithm, int nodes) {
  constexpr std::size_t kHeldBytes = 4 << 20;
  const std::size_t held = algorithm == ReduceAlgorithm::kDirect ? nodes : 1;
  return std::max(round_down(kHeldBytes / held, kLine), kLine);
}

/// Bytes of a node's share of a piece on the ring: whole lines, so that the last ones may be shorter, or empty.
inline std::size_t ring_share_bytes(std::size_t bytes, int nodes) { return (bytes / nodes / kLine + 1) * kLine; }

/// Bytes of the longest message about a piece.
inline std::size_t leader_message_bytes(ReduceAlgorithm algorithm, const Operand& piece, int nodes) {
  if (algorithm == ReduceAlgorithm::kDirect) return piece.bytes;
  const std::size_t partial = piece.bytes * piece.partial_width;
  return algorithm == ReduceAlgorithm::kRing ? std::min(partial, ring_share_bytes(partial, nodes)) : partial;
}

/// What node 0 sends of a piece on the ring: all shares but that of node 0 to be reduced, all but that of node 1 after.
inline std::size_t ring_sent_bytes(std::size_t bytes, int nodes) {
  const std::size_t share = ring_share_bytes(bytes, nodes);
  return 2 * bytes - std::min(bytes, 2 * share);
}

}  // namespace accdp
