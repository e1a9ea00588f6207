#pragma once
#include <cstddef>
#include <vector>

#include "codec/codec.hpp"
#include "codec/policy.hpp"

namespace accdp {

/// Seconds that a codec takes for so many bytes, checksums included, on noise with the spread of trained weights, on
/// one core. Not in proportion to the bytes: calls cost something, and LZ4 has another way with less than 64 KiB.
class CodecTimes {
 public:
  static constexpr std::size_t kSizes = 4, kLeast = 4 << 10, kMost = kLeast << 2 * (kSizes - 1);
  static std::size_t bytes_at(std::size_t i) { return kLeast << 2 * i; }

  double encode_s(std::size_t bytes) const { return at(encode, bytes); }
  double decode_s(std::size_t bytes) const { return at(decode, bytes); }
  /// As speed and cost of a call, its ratio left at 1; of times that so many chunks took together.
  CodecCost cost(std::size_t chunks = 1) const;

  double encode[kSizes]{}, decode[kSizes]{};  ///< for bytes_at()

 private:
  static double at(const double* seconds, std::size_t bytes);
};

/// What is encoded and decoded for that, CodecTimes::kMost bytes, and how.
std::vector<std::byte> speed_data(const CodecRow& codec, Datatype type);
Encoding speed_encoding(Datatype type);

/// Measured at first use, some milliseconds, and kept in a file in the user's cache folder for processes to come.
CodecTimes codec_times(const CodecRow& codec, Datatype type);

CodecCost codec_speed(const CodecRow& codec, Datatype type);

}  // namespace accdp
