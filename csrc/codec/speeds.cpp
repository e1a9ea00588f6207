#include "codec/speeds.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "base/deadline.hpp"
#include "codec/crc32c.hpp"
#include "codec/speed_table.hpp"

namespace accdp {
namespace {

constexpr int kTurns = 3;  // the first one also warms up

/// Floats as trained weights have them, in the datatype's bits. Integers as differences between versions are: most of
/// them small, one in four 0.
std::vector<std::byte> noise(Datatype type) {
  std::vector<std::byte> data(CodecTimes::kMost);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::geometric_distribution<int> small(0.25);
  const std::size_t width = element_bytes(type);
  for (std::size_t at = 0; at + width <= data.size(); at += width) {
    const float value = normal(random);
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    std::uint64_t word;
    if (type == Datatype::kBF16 || type == Datatype::kF16) {
      word = bits >> 16;  // of a bfloat16; for a measurement of speed it looks enough like a half
    } else if (type == Datatype::kF32 || type == Datatype::kC64) {
      word = bits;
    } else if (type == Datatype::kF64 || type == Datatype::kC128) {
      const double wide = value;
      std::memcpy(&word, &wide, 8);
    } else {
      word = static_cast<std::uint64_t>(small(random));
    }
    std::memcpy(data.data() + at, &word, std::min<std::size_t>(width, 8));
  }
  return data;
}

/// A few of the elements again and again, for codecs that find repetitions and see none in noise.
void repeat_elements(std::vector<std::byte>& data, std::size_t width) {
  std::mt19937 random(2);
  for (std::size_t at = 16 * width; at + width <= data.size(); at += width)
    std::memcpy(data.data() + at, data.data() + random() % 16 * width, width);
}

/// Seconds to encode and decode the first bytes of some data, checksums included, as frames need them.
std::pair<double, double> time_both(const CodecRow& codec, const Encoding& how, ConstBytes data, Bytes stored,
                                    Bytes back) {
  std::size_t size = 0;
  const double encode = least_processor_seconds(kTurns, [&] {
    size = codec.encode(how, data, stored);
    crc32c(size ? ConstBytes(stored).first(size) : data);
  });
  if (size == 0) return {encode, encode};
  const double decode = least_processor_seconds(kTurns, [&] {
    crc32c(ConstBytes(stored).first(size));
    codec.decode(how.type, ConstBytes(stored).first(size), back.first(data.size()));
  });
  return {encode, decode};
}

CodecTimes measure(const CodecRow& codec, Datatype type) {
  const std::vector<std::byte> data = speed_data(codec, type);
  std::vector<std::byte> stored(data.size()), back(data.size());
  CodecTimes times;
  for (std::size_t i = 0; i < CodecTimes::kSizes; ++i)
    std::tie(times.encode[i], times.decode[i]) =
        time_both(codec, speed_encoding(type), ConstBytes(data).first(CodecTimes::bytes_at(i)), stored, back);
  return times;
}

}  // namespace

Encoding speed_encoding(Datatype type) { return {type, 2e-4}; }

std::vector<std::byte> speed_data(const CodecRow& codec, Datatype type) {
  std::vector<std::byte> data = noise(type), stored(data.size());
  // One that gives noise up at once is not fast.
  if (codec.encode(speed_encoding(type), data, stored) == 0) repeat_elements(data, element_bytes(type));
  return data;
}

double CodecTimes::at(const double* seconds, std::size_t bytes) {
  std::size_t i = 1;  // between i - 1 and i, or beyond in a straight line
  while (i + 1 < kSizes && bytes > bytes_at(i)) ++i;
  const auto below = static_cast<double>(bytes_at(i - 1)), above = static_cast<double>(bytes_at(i));
  const double slope = (seconds[i] - seconds[i - 1]) / (above - below);
  return std::max(seconds[i - 1] + (static_cast<double>(bytes) - below) * slope, seconds[0] / 4);
}

CodecTimes codec_times(const CodecRow& codec, Datatype type) {
  static SpeedTable table(host_processor(), measure);
  return table.get(codec, type);
}

CodecCost CodecTimes::cost(std::size_t chunks) const {
  constexpr std::size_t kLast = kSizes - 1;
  constexpr double kShare = static_cast<double>(kLeast) / kMost;
  const auto most = static_cast<double>(chunks * kMost);
  return {1, most / encode[kLast], most / decode[kLast], std::max(0.0, encode[0] - encode[kLast] * kShare),
          std::max(0.0, decode[0] - decode[kLast] * kShare)};
}

CodecCost codec_speed(const CodecRow& codec, Datatype type) { return codec_times(codec, type).cost(); }

}  // namespace accdp
