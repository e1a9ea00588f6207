#pragma once
#include <chrono>

namespace accdp {

/// Before the process ends in order: waits until no other process will read its memory any more (gpu/readers.hpp).
/// False, and said on standard error, where that took longer. At once in a process that was forked from the one that
/// had pools.
bool await_readers(std::chrono::duration<double> most) noexcept;

}  // namespace accdp
