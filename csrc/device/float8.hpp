// Floats of 8 bits, for the reduction loops of the host and of the device: ACCDP_ISA names the namespace, so that there
// is one for each instruction set (reduce_kernels.hpp says why); ACCDP_FUNCTION is what functions of kernels begin
// with, and empty elsewhere.

namespace accdp::ACCDP_ISA {

/// A sign, an exponent and kMantissa bits, as the OCP's OFP8 defines them. Narrowed from float32 to nearest, ties to
/// even. What is too large becomes infinity where the format has one, else NaN: nothing saturates, as in torch.
template <int kMantissa, int kBias, bool kHasInfinity>
struct Float8 {
  using T = std::uint8_t;
  using Acc = float;
  static constexpr std::uint32_t kFirstNormal = 1u << kMantissa, kInfinity = 0x7f >> kMantissa << kMantissa;
  static constexpr std::uint32_t kNan = 0x7f, kWideNan = 0x7fc00000, kWideInfinity = 0x7f800000;
  static constexpr int kShift = 23 - kMantissa;  // between the mantissas
  // Exponents as float32 has them: of 2^0 here, of our first normal number, of the step between our denormal ones, and
  // of the number beside which a float32 has that step.
  static constexpr std::uint32_t kZeroth = (127u - kBias) << 23, kLeastNormal = (128u - kBias) << 23;
  static constexpr std::uint32_t kStep = (128u - kBias - kMantissa) << 23, kSteps = (151u - kBias - kMantissa) << 23;

  static ACCDP_FUNCTION float as_float(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  static ACCDP_FUNCTION std::uint32_t as_bits(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  }

  /// Without a branch, into which a compiler would move what only one of both needs: it vectorises no loop that has
  /// one.
  static ACCDP_FUNCTION std::uint32_t either(bool first, std::uint32_t one, std::uint32_t other) {
    const std::uint32_t mask = 0u - static_cast<std::uint32_t>(first);
    return (one & mask) | (other & ~mask);
  }

  static ACCDP_FUNCTION Acc load(T x) {
    const std::uint32_t magnitude = x & 0x7f;
    const std::uint32_t normal = (magnitude << kShift) + kZeroth;
    // Not by a denormal float32, which some threads take for zero.
    const std::uint32_t denormal = as_bits(static_cast<float>(static_cast<int>(magnitude)) * as_float(kStep));
    std::uint32_t bits = either(magnitude < kFirstNormal, denormal, normal);
    if (kHasInfinity) bits = either(magnitude == kInfinity, kWideInfinity, bits);
    bits = either(kHasInfinity ? magnitude > kInfinity : magnitude == kNan, kWideNan, bits);
    return as_float(bits | (x & 0x80u) << 24);
  }

  static ACCDP_FUNCTION T store(Acc x) {
    const std::uint32_t sign = as_bits(x) >> 24 & 0x80, wide = as_bits(x) & 0x7fffffff;
    const std::uint32_t half_less = (1u << (kShift - 1)) - 1;
    const std::uint32_t normal = ((wide + half_less + (wide >> kShift & 1)) >> kShift) - (kZeroth >> kShift);
    const std::uint32_t denormal = as_bits(as_float(wide) + as_float(kSteps)) - kSteps;  // the addition rounds
    const std::uint32_t rounded = either(wide < kLeastNormal, denormal, normal);
    const std::uint32_t too_large = kHasInfinity ? kInfinity : kNan;
    const std::uint32_t magnitude = either(rounded > too_large, too_large, rounded);
    // Which sign the NaN of a sum has depends on the order in which a compiler adds.
    return static_cast<T>(either(wide > kWideInfinity, kNan, sign | magnitude));
  }
};
using Float8E4M3 = Float8<3, 7, false>;
using Float8E5M2 = Float8<2, 15, true>;

}  // namespace accdp::ACCDP_ISA
