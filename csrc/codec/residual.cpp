#include "codec/residual.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float16.hpp"

namespace accdp {
namespace {

struct BF16 {
  std::uint16_t bits;
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

template <class Value, class Wide>
void subtract(ConstBytes exact, ConstBytes kept, Wide factor, float* out) {
  constexpr float kMost = std::numeric_limits<float>::max();
  for (std::size_t i = 0; i < exact.size() / sizeof(Value); ++i) {
    Value a, b;
    std::memcpy(&a, exact.data() + i * sizeof a, sizeof a);
    std::memcpy(&b, kept.data() + i * sizeof b, sizeof b);
    const Wide wide_a = static_cast<Wide>(a), wide_b = static_cast<Wide>(b), left = (wide_a - wide_b) * factor;
    const bool are_finite = std::isfinite(wide_a) && std::isfinite(wide_b);
    out[i] = are_finite ? static_cast<float>(std::clamp<Wide>(left, -kMost, kMost)) : 0;
  }
}

}  // namespace

void residual(Datatype type, ConstBytes exact, ConstBytes kept, double factor, float* out) noexcept {
  switch (type) {
    case Datatype::kF16: return subtract<Float16, float>(exact, kept, static_cast<float>(factor), out);
    case Datatype::kBF16: return subtract<BF16, float>(exact, kept, static_cast<float>(factor), out);
    case Datatype::kF32: return subtract<float, float>(exact, kept, static_cast<float>(factor), out);
    case Datatype::kF64: return subtract<double, double>(exact, kept, factor, out);
    default: return;
  }
}

}  // namespace accdp
