#pragma once
#include <vector>

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

/// The same way from node to node for memory that goes as it is.
void bcast_between_nodes(Context& context, Bytes data, int root);

}  // namespace accdp
