#include "base/processor.hpp"

#if defined(__x86_64__)
#include <cpuid.h>

namespace accdp {

bool has_avx2() noexcept {
  // clang's __builtin_cpu_supports() learnt of F16C late.
  constexpr unsigned kF16C = 1U << 29;
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & kF16C);
  return has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("popcnt");
}

}  // namespace accdp
#endif
