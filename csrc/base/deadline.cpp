#include "base/deadline.hpp"

#include <atomic>

namespace accdp {
namespace {
std::atomic<void (*)()> g_check{nullptr};
}

void set_interrupt_check(void (*check)()) { g_check = check; }
void check_interrupt() {
  if (auto check = g_check.load()) check();
}

}  // namespace accdp
