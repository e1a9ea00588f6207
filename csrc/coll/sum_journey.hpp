#pragma once
#include "codec/policy.hpp"
#include "coll/cost.hpp"

namespace accdp {

/// From such shares of a slot on, frames are long enough for their heads, and tables of codes, to be little of them.
constexpr std::size_t kLeastEncodedFrame = 16 << 10;
/// How many ranks of each node encode in an allreduce of so many bytes: as many as would speak without a codec, unless
/// their frames were shorter than that.
int encoding_lanes(std::size_t bytes, const Shape& shape, const Machine& machine);

/// What a thread that encodes does in a compressed allreduce; `message` is the whole of it, as of allreduce_journey().
/// As it is the message goes as any other: by all ranks of a node, perhaps, where one alone encodes.
Journey sum_journey(const Journey& message, const Shape& shape, const Machine& machine);

}  // namespace accdp
