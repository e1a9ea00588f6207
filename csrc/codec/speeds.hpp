#pragma once
#include "codec/codec.hpp"
#include "codec/policy.hpp"

namespace accdp {

/// A codec's cost on noise with the spread of trained weights, on one core, its ratio left at 1: measured at first
/// use, some milliseconds, and kept in a file in the user's cache folder for processes to come.
CodecCost codec_speed(const CodecRow& codec, Datatype type);

}  // namespace accdp
