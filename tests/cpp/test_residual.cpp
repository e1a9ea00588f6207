// What an encoded sum leaves out: nothing of what is no number, and never more than a float32 can be.
#include "codec/residual.hpp"

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "check.hpp"

using namespace accdp;

template <class T>
void of(Datatype type, const std::vector<T>& exact, const std::vector<T>& kept, double factor,
        const std::vector<float>& wanted) {
  std::vector<float> left(wanted.size(), 9);
  residual(type, std::as_bytes(std::span(exact)), std::as_bytes(std::span(kept)), factor, left.data());
  CHECK(left == wanted);
}

int main() {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  of<float>(Datatype::kF32, {1.5F, kInf, kNaN, 1, kMost, -kMost}, {1, kInf, 1, kInf, -kMost, kMost}, 2,
            {1, 0, 0, 0, kMost, -kMost});
  // A divisor that float32 has not, and a difference that it could not tell.
  of<double>(Datatype::kF64, {1 + 0x1p-40, 1e300, -1e300, kInf, 0x1p-30}, {1, 0, 0, 0, 0}, 1 + 0x1p-30,
             {static_cast<float>(0x1p-40 * (1 + 0x1p-30)), kMost, -kMost, 0, 0x1p-30F});
  of<std::uint16_t>(Datatype::kF16, {0x3c00, 0x7c00, 0x7bff, 0x7e00}, {0x3800, 0x7c00, 0xfbff, 0}, 2,
                    {1, 0, 4 * 65504.F, 0});
  of<std::uint16_t>(Datatype::kBF16, {0x3f80, 0x7f80, 0x7f7f, 0x7fc0}, {0x3f00, 0x7f80, 0xff7f, 0}, 2,
                    {1, 0, kMost, 0});
}
