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

/// The codecs that take the datatype, lossy ones only for a bound > 0, and that all ranks have (`lacking`: a bit per
/// CodecId that somebody has not), with this machine's usual speeds, the one that is cheapest to try first. Those that
/// are slower than `pace` (bytes per second of the link), on any data, are left out: they could only slow it down.
std::vector<Candidate> codecs_to_try(const Encoding& how, std::uint32_t lacking, double pace);

/// Encodes and decodes all samples once. True where they become smaller: `cost` is then the codec's ratio and speed
/// there. Samples should be in the cache already, or the first candidate looks slow.
bool try_codec(const CodecRow& codec, const Encoding& how, std::span<const ConstBytes> samples, CodecCost& cost);

}  // namespace accdp
