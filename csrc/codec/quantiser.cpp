// Why no encoded element needs to be checked against the bound. Let d be the step, y = x / d, |y| <= kMostNumber. The
// float32 inverse of d, the product x * inverse and the product back each round by at most 2^-24 of themselves, which
// adds up to 3 * 2^-24 * |y| < 0.0059 steps beside the half step of rounding to an integer. The step is kMargin smaller
// than the bound allows: half of it and 0.0059 of it stay below the bound. No product is denormal (kLeastStep), so that
// threads which flush denormals decode the same.
//
// 16-bit floats round once more, from z = number * d to x' in their own format. Two arguments give a step for them, the
// larger one is taken; d is smaller by kMargin again.
// 1. The last rounding adds half a spacing of the format near z. z lies at most one binade above the largest element
//    (what is below half a step becomes 0), so a step of 2 * bound less one spacing of that binade is safe.
// 2. x itself is a number of the format. Let p = 2^j <= bound be the largest such power and |x - z| < p. Then x' is not
//    further from x than p: if x + p (or x - p) is in the format, z lies on the near side of it and so does x'; if it
//    is half way between two neighbours, x' is the nearer one; if the spacing exceeds 2p, x' is x. It is none of these
//    only where x + p lies two binades above x, thus x < p; there kMargin keeps z more than half a spacing below x + p.
//    So a step of 2p is safe, whatever the spacing.
#include "codec/quantiser.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.hpp"

namespace accdp {
namespace {

constexpr float kMostNumber = 32767;
constexpr double kMargin = 1.0 / 64;
constexpr double kLeastStep = 0x1p-100;

struct SmallFloat {
  int mantissa_bits, bias;
  double largest;
};
constexpr SmallFloat kHalf = {10, 15, 65504}, kBFloat16 = {7, 127, 0x1.fep127};

const SmallFloat& small_float(Datatype type) { return type == Datatype::kF16 ? kHalf : kBFloat16; }

/// No larger step is used: its products stay finite, and float16 keeps room between 2 steps and its largest number.
double most_step(Datatype type) { return type == Datatype::kF16 ? 0x1p14 : 0x1p112; }

/// The largest magnitude in a chunk of 16-bit floats, as a number; infinite or NaN: the largest finite.
double largest_magnitude(Datatype type, ConstBytes in) {
  std::int16_t most = 0;  // without signs, bits are ordered like values
  for (std::size_t at = 0; at < in.size(); at += 2) {
    std::int16_t bits;
    std::memcpy(&bits, in.data() + at, 2);
    most = std::max(most, static_cast<std::int16_t>(bits & 0x7fff));
  }
  const SmallFloat& format = small_float(type);
  const int exponent = most >> format.mantissa_bits, mantissa = most & ((1 << format.mantissa_bits) - 1);
  const double value =
      exponent == 0 ? std::ldexp(mantissa, 1 - format.bias - format.mantissa_bits)
                    : std::ldexp(mantissa + (1 << format.mantissa_bits), exponent - format.bias - format.mantissa_bits);
  return std::min(value, format.largest);
}

}  // namespace

bool Quantiser::takes(Datatype type) noexcept {
  return type == Datatype::kF32 || type == Datatype::kBF16 || type == Datatype::kF16;
}

float Quantiser::step_for(Datatype type, double bound, double largest) {
  bound = std::min(bound, most_step(type));  // doubled, it stays finite
  double step = 2 * bound;
  if (type != Datatype::kF32) {
    const SmallFloat& format = small_float(type);
    const int binade = std::max(largest > 0 ? std::ilogb(largest) : -1000, 1 - format.bias);
    const double spacing_above = std::ldexp(1.0, binade + 1 - format.mantissa_bits);
    step = std::max(2 * bound - spacing_above, std::ldexp(2.0, std::ilogb(bound)));
  }
  step = std::min(step * (1 - kMargin), most_step(type));
  return step < kLeastStep ? 0 : static_cast<float>(step);
}

float Quantiser::limit_for(Datatype type, double step) {
  if (type != Datatype::kF16) return kMostNumber;
  return static_cast<float>(std::min<double>(kMostNumber, kHalf.largest / step - 1));
}

Quantiser::Quantiser(const char* codec, Datatype type, double bound, ConstBytes chunk) : type_(type) {
  if (!(bound > 0) || std::isinf(bound))
    throw UsageError(std::string(codec) + ": the error bound must be finite and > 0");
  step_ = step_for(type, bound, type == Datatype::kF32 ? 0 : largest_magnitude(type, chunk));
  if (!has_step()) return;
  inverse_ = 1 / step_;
  limit_ = limit_for(type, step_);
}

Quantiser::Quantiser(const char* codec, Datatype type, ConstBytes stream) : type_(type) {
  double step;
  if (stream.size() < sizeof step) throw CodecError(std::string(codec) + ": ends within its header");
  std::memcpy(&step, stream.data(), sizeof step);
  if (!(step >= kLeastStep && step <= most_step(type)) || static_cast<float>(step) != step)
    throw CodecError(std::string(codec) + ": the step is none that an encoder writes");
  step_ = static_cast<float>(step);
}

void Quantiser::put_header(std::byte* at) const {
  const double step = step_;
  std::memcpy(at, &step, sizeof step);
}

int Quantiser::quantise(const BlockOps& ops, const std::byte* block, std::uint8_t* rows) const {
  const int bits = ops.quantise(type_, block, inverse_, limit_, rows);
  return bits < static_cast<int>(8 * element_bytes(type_)) ? bits : -1;
}

void Quantiser::round(const BlockOps& ops, Bytes chunk) const {
  alignas(64) std::uint8_t rows[2 * kRow];
  for (std::size_t at = 0; at + block_bytes() <= chunk.size(); at += block_bytes())
    if (quantise(ops, chunk.data() + at, rows) >= 0) dequantise(ops, rows, chunk.data() + at);
}

}  // namespace accdp
