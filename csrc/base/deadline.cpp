#include "base/deadline.hpp"

#include <time.h>

#include <atomic>

namespace accdp {
namespace {
std::atomic<void (*)()> g_check{nullptr};
thread_local int t_checks = 0;
}  // namespace

double processor_seconds() noexcept {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

void set_interrupt_check(void (*check)()) { g_check = check; }
void check_interrupt() {
  const auto check = g_check.load();
  if (!check) return;
  struct Count {
    Count() { ++t_checks; }
    ~Count() { --t_checks; }
  } count;
  check();
}
bool is_in_interrupt_check() noexcept { return t_checks > 0; }

}  // namespace accdp
