#include "base/deadline.hpp"

#include <time.h>

#include <atomic>

namespace accdp {
namespace {
std::atomic<void (*)()> g_check{nullptr};
}

double processor_seconds() noexcept {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

void set_interrupt_check(void (*check)()) { g_check = check; }
void check_interrupt() {
  if (auto check = g_check.load()) check();
}

}  // namespace accdp
