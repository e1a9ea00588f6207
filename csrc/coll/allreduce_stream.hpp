#pragma once
#include <span>

#include "coll/algorithms.hpp"
#include "coll/stream_codec.hpp"

namespace accdp {

/// Allreduce in place of tensors that lie one after the other, encoded between nodes. `residual`: empty, or as many
/// floats as there are elements: what encoding took from this rank's share, in units of a contribution, 0 elsewhere.
/// The report's bytes are those that this rank sent, and would have sent.
StreamReport allreduce_stream(Context& context, std::vector<Piece> pieces, const Reduction& how,
                              const StreamOptions& options, std::span<float> residual, bool in_rank_order);

}  // namespace accdp
