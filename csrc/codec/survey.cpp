#include "codec/survey.hpp"

#include <algorithm>
#include <chrono>

#include "codec/crc32c.hpp"
#include "codec/speeds.hpp"

namespace accdp {
namespace {

constexpr double kFasterOnSomeData = 3;
constexpr std::size_t kEnoughToTime = 4;

/// What one call took for a byte, the part that each call costs left out as far as it is known.
double seconds_per_byte(std::chrono::steady_clock::duration took, double call_s, std::size_t bytes) {
  const double seconds = std::chrono::duration<double>(took).count();
  return std::max({seconds - call_s, seconds / 4, 1e-12}) / static_cast<double>(bytes);
}

/// Zeros and small differences go faster than noise, or slower: the samples tell. Their median, because one of them
/// may have been interrupted; a few of them are believed only so far.
double adjusted_speed(double usual, std::vector<double>& seconds_per_byte) {
  const auto middle = seconds_per_byte.begin() + static_cast<long>(seconds_per_byte.size() / 2);
  std::nth_element(seconds_per_byte.begin(), middle, seconds_per_byte.end());
  const double least = seconds_per_byte.size() < kEnoughToTime ? 0.5 : 0.1;
  return usual * std::clamp(1 / (*middle * usual), least, 16.0);
}

}  // namespace

std::vector<Candidate> codecs_to_try(const Encoding& how, std::uint32_t lacking, double pace) {
  std::vector<Candidate> found;
  for (const CodecRow* codec : codec_rows()) {
    if (!codec->takes(how.type) || (codec->lossy && !(how.bound > 0)) || is_in(lacking, codec->id)) continue;
    if (!why_not_here(*codec).empty()) continue;
    const CodecCost cost = codec_speed(*codec, how.type);
    if (kFasterOnSomeData * std::min(cost.encode_bytes_per_s, cost.decode_bytes_per_s) < pace) continue;
    found.push_back({codec, cost});
  }
  constexpr double kTypicalSample = 16 << 10;
  std::stable_sort(found.begin(), found.end(), [&](const Candidate& a, const Candidate& b) {
    return sampling_seconds(a.cost, kTypicalSample) < sampling_seconds(b.cost, kTypicalSample);
  });
  return found;
}

std::vector<Candidate> survey(std::span<const ConstBytes> samples, const Encoding& how,
                              std::span<const Candidate> candidates) {
  using Clock = std::chrono::steady_clock;
  std::vector<Candidate> found;
  std::vector<std::byte> stored, back;
  for (const ConstBytes sample : samples) stored.resize(std::max(stored.size(), sample.size()));
  back.resize(stored.size());
  for (Candidate candidate : candidates) {
    const CodecRow& codec = *candidate.codec;
    CodecCost& cost = candidate.cost;
    std::size_t before = 0, after = 0;
    std::vector<double> encoding, decoding;
    for (const ConstBytes sample : samples) {
      const auto began = Clock::now();
      const std::size_t size = codec.encode(how, sample, stored);
      const ConstBytes payload = size ? ConstBytes(stored).first(size) : sample;
      crc32c(payload);  // as frames do
      const auto encoded = Clock::now();
      encoding.push_back(seconds_per_byte(encoded - began, cost.encode_call_s, sample.size()));
      before += sample.size();
      after += payload.size();
      if (size == 0) continue;
      crc32c(payload);
      codec.decode(how.type, payload, Bytes(back).first(sample.size()));
      decoding.push_back(seconds_per_byte(Clock::now() - encoded, cost.decode_call_s, sample.size()));
    }
    if (after >= before) continue;
    cost.ratio = static_cast<double>(before) / static_cast<double>(after);
    cost.encode_bytes_per_s = adjusted_speed(cost.encode_bytes_per_s, encoding);
    cost.decode_bytes_per_s = adjusted_speed(cost.decode_bytes_per_s, decoding);
    found.push_back(candidate);
  }
  return found;
}

}  // namespace accdp
