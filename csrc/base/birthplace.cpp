#include "base/birthplace.hpp"

#include <pthread.h>

#include <atomic>

namespace accdp {
namespace {

// Counted rather than asked for: a process id costs a system call, and every operation looks.
std::atomic<unsigned> g_forks{0};
[[maybe_unused]] const int g_registered = pthread_atfork(nullptr, nullptr, [] { ++g_forks; });

}  // namespace

unsigned Birthplace::forks() noexcept { return g_forks.load(std::memory_order_relaxed); }

}  // namespace accdp
