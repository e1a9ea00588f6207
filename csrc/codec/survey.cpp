#include "codec/survey.hpp"

#include <algorithm>

#include "base/deadline.hpp"
#include "codec/crc32c.hpp"
#include "codec/scratch.hpp"
#include "codec/speeds.hpp"

namespace accdp {
namespace {

constexpr double kFasterOnSomeData = 3;

/// Zeros and small differences go faster than what the usual speed was measured on, or slower: the samples tell, by the
/// times that they took in units of what is usual for as many bytes. The median, because one of them may have been
/// interrupted; a few of them are believed only so far.
double adjusted_speed(double usual, std::vector<double>& slowness) {
  if (slowness.empty()) return usual;
  const auto middle = slowness.begin() + static_cast<long>(slowness.size() / 2);
  std::nth_element(slowness.begin(), middle, slowness.end());
  const double least = sampling_turns(slowness.size()) > 1 ? 0.5 : 0.1;
  return usual * std::clamp(1 / *middle, least, 16.0);
}

}  // namespace

std::vector<Candidate> codecs_to_try(const Encoding& how, std::uint32_t lacking, double pace, const Placement& placed) {
  std::vector<Candidate> found;
  for (const CodecRow* codec : codec_rows()) {
    if (!is_in(codecs_of_auto() & ~lacking, codec->id) || !codec->takes(how.type) || (codec->lossy && !(how.bound > 0)))
      continue;
    if (!why_not_here(*codec).empty()) continue;
    const CodecCost in_host = codec_speed(*codec, how.type), cost = placed(*codec, in_host);
    if (kFasterOnSomeData * std::min(cost.encode_bytes_per_s, cost.decode_bytes_per_s) < pace) continue;
    found.push_back({codec, cost, in_host});
  }
  constexpr double kTypicalSample = 16 << 10;
  std::stable_sort(found.begin(), found.end(), [&](const Candidate& a, const Candidate& b) {
    return sampling_seconds(a.in_host, kTypicalSample) < sampling_seconds(b.in_host, kTypicalSample);
  });
  return found;
}

bool try_codec(Candidate& candidate, const Encoding& how, std::span<const ConstBytes> samples,
               const Placement& placed) {
  const CodecRow& codec = *candidate.codec;
  std::size_t before = 0, after = 0, longest = 0;
  for (const ConstBytes sample : samples) longest = std::max(longest, (sample.size() + 63) / 64 * 64);
  thread_local Scratch scratch;
  const Bytes stored(scratch.at_least(2 * longest), longest), back(stored.data() + longest, longest);
  std::vector<double> encoding, decoding;
  const CodecTimes usual = codec_times(codec, how.type);
  const int turns = sampling_turns(samples.size());
  for (const ConstBytes sample : samples) {
    std::size_t size = 0;
    ConstBytes payload;
    const double encode_s = least_processor_seconds(turns, [&] {
      size = codec.encode(how, sample, stored);
      payload = size ? ConstBytes(stored).first(size) : sample;
      crc32c(payload);  // as frames do
    });
    encoding.push_back(encode_s / usual.encode_s(sample.size()));
    before += sample.size();
    after += payload.size();
    if (size == 0) continue;
    const double decode_s = least_processor_seconds(turns, [&] {
      crc32c(payload);
      codec.decode(how.type, payload, back.first(sample.size()));
    });
    decoding.push_back(decode_s / usual.decode_s(sample.size()));
  }
  if (after >= before) return false;
  CodecCost found = codec_speed(codec, how.type);
  found.ratio = static_cast<double>(before) / static_cast<double>(after);
  found.encode_bytes_per_s = adjusted_speed(found.encode_bytes_per_s, encoding);
  found.decode_bytes_per_s = adjusted_speed(found.decode_bytes_per_s, decoding);
  candidate.in_host = found;
  candidate.cost = placed(codec, found);
  return true;
}

}  // namespace accdp
