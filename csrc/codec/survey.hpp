#pragma once
#include <span>
#include <vector>

#include "codec/codec.hpp"
#include "codec/policy.hpp"

namespace accdp {

/// A codec that could be used for some data, with what is known about it there.
struct Candidate {
  const CodecRow* codec;
  CodecCost cost;
};

/// All codecs that take the datatype and work in this process, with the ratio found on the samples, and this machine's
/// speeds as the samples change them. bound > 0 lets lossy ones in. Each codec encodes the samples once; those that are
/// slower than `pace` (bytes per second of the link) are left out unseen, since they could only slow it down.
std::vector<Candidate> survey(std::span<const ConstBytes> samples, const Encoding& how, double pace);

/// Bytes per second of one core on noise with the spread of trained weights: measured at first use, a millisecond or
/// two, and kept in a file in the user's cache folder for processes to come.
CodecCost codec_speed(const CodecRow& codec, Datatype type);

}  // namespace accdp
