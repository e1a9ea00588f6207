#pragma once
#include <cstddef>

#include "base/types.hpp"
#include "codec/block_ops.hpp"

namespace accdp {

/// What qpk and qhuff have in common: elements are rounded to multiples of a step, which precedes the stream as a
/// float64. A block of kBlock elements becomes zigzagged numbers of 16 bits; one with NaN, infinity or larger numbers
/// stays as it is, and so do the elements that fill no block. -0 may come back as +0.
class Quantiser {
 public:
  static constexpr std::size_t kBlock = 256, kHeaderBytes = sizeof(double);

  /// For the elements of a chunk. Throws UsageError, with the codec's name, if the bound is not finite and > 0.
  Quantiser(const char* codec, Datatype type, double bound, ConstBytes chunk);
  /// From the beginning of a stream. Throws CodecError, with the codec's name, if no encoder writes that.
  Quantiser(const char* codec, Datatype type, ConstBytes stream);

  static bool takes(Datatype type) noexcept;
  /// The step that keeps |x - x'| <= bound for elements up to `largest` in magnitude (float32: any); 0 if none can.
  static float step_for(Datatype type, double bound, double largest);
  /// |x / step| up to this is rounded to a number; beyond it the block stays as it is. Half a step above the largest
  /// float16, rounding would give infinity.
  static float limit_for(Datatype type, double step);

  bool has_step() const { return step_ != 0; }
  std::size_t block_bytes() const { return kBlock * element_bytes(type_); }
  void put_header(std::byte* at) const;

  /// Numbers in two byte rows, the lower bytes first, kRow apart. Returns how many bits the largest has, at most 15
  /// of 16-bit floats, or -1: the block has to stay as it is.
  int quantise(const BlockOps& ops, const std::byte* block, std::uint8_t* rows) const;
  void dequantise(const BlockOps& ops, const std::uint8_t* rows, std::byte* block) const {
    ops.dequantise(type_, rows, step_, block);
  }
  /// Makes of a chunk in place what its receiver gets.
  void round(const BlockOps& ops, Bytes chunk) const;

 private:
  Datatype type_;
  float step_ = 0, inverse_ = 0, limit_ = 0;
};

}  // namespace accdp
