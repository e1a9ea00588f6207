#pragma once
#include <functional>
#include <span>
#include <vector>

#include "codec/codec.hpp"
#include "codec/policy.hpp"

namespace accdp {

/// A codec that could be used for some data, with what is known about it there.
struct Candidate {
  const CodecRow* codec;
  CodecCost cost;       ///< of the stream, wherever it is encoded and decoded
  CodecCost in_host{};  ///< of samples
};

/// From what a codec takes in the host, what it takes where a stream is encoded and decoded.
using Placement = std::function<CodecCost(const CodecRow&, const CodecCost& in_host)>;

/// The codecs that take the datatype, lossy ones only for a bound > 0, and that all ranks have (`lacking`: a bit per
/// CodecId that somebody has not), with this machine's usual speeds, the one that is cheapest to try first. Those that
/// are slower than `pace` (bytes per second of the link), on any data, are left out: they could only slow it down.
std::vector<Candidate> codecs_to_try(const Encoding& how, std::uint32_t lacking, double pace, const Placement& placed);

/// How often each of so many samples is encoded and decoded: the first time a codec has to fetch its own code and
/// tables, which in one short sample would count for all that it does.
constexpr int sampling_turns(std::size_t samples) { return samples < 4 ? 2 : 1; }

/// Encodes and decodes all samples, in the host. True where they become smaller: the candidate then has the
/// codec's ratio and speed there. Samples should be in the cache already, or the first candidate looks slow.
bool try_codec(Candidate& candidate, const Encoding& how, std::span<const ConstBytes> samples, const Placement& placed);

}  // namespace accdp
