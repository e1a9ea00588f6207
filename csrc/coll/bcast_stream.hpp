#pragma once
#include <algorithm>
#include <vector>

#include "base/rounding.hpp"
#include "coll/context.hpp"
#include "coll/stream_codec.hpp"

namespace accdp {

/// Broadcast of a list of tensors, compressed between nodes if that pays or was asked for. Checks of arguments are the
/// caller's; pieces and options agree on all ranks (Signature::layout).
StreamReport bcast_stream(Context& context, const std::vector<Piece>& pieces, int root, const StreamOptions& options);

/// As an MPI library does it whose point-to-point messages are compressed: a binomial tree over the nodes in which each
/// message is encoded as a whole, sent, and decoded as a whole before it is encoded anew for the next. For comparison.
void bcast_p2p_compressed(Context& context, const std::vector<Piece>& pieces, const StreamPlan& plan, int root,
                          const StreamOptions& options, const Journey& journey, StreamReport& report);

/// On one node: root encodes, every other rank decodes.
void bcast_encoded_on_node(Context& context, const StreamPlan& plan, int root, StreamCodec& codec,
                           bool root_takes_decoded, StreamReport& report);

/// Options of a broadcast of memory that goes as it is: its algorithm and chunk are what settings asked for.
StreamOptions plain_stream(const Asked& asked);
/// The length of a frame where `asked` was asked for, which goes through a slot: half of that leaves room for heads.
inline std::size_t frame_bytes(std::size_t asked, const Shape& shape) {
  return std::min(asked, round_down(shape.slot_bytes / 2, kFrameAlign));
}

/// The same way from node to node for memory that goes as it is.
void bcast_between_nodes(Context& context, Bytes data, int root);

}  // namespace accdp
