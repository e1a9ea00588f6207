#pragma once
#include <cstdint>

namespace accdp {

/// True while the process that had this pid and start time (ticks since boot; 0 = unknown) runs.
bool process_lives(int pid, std::uint64_t start_time);
/// Whether a signal has stopped it.
bool process_is_stopped(int pid);

}  // namespace accdp
