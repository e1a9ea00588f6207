#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "node/board.hpp"

namespace accdp {

/// One thing that happened on this rank. accdp_comm/steps.py and tune/events.py know this layout.
struct Event {
  std::int64_t time_ns;  ///< of the monotonic clock, at the end of it
  std::uint64_t label;   ///< equal for equal things; a collective's has its two highest bits clear
  double samples;        ///< that this rank worked off in it; 0 where nobody said so
};
static_assert(sizeof(Event) == 24);

constexpr std::size_t kEventLogHead = 4096;  ///< bytes before the first event; the number of events stands at 0

/// Keep a log from now on: a ring in memory (a mapped file) that stays valid as long as the process and begins with
/// zeros. Without one, logging costs a comparison. Throws UsageError if there is no room for an event.
void log_events_into(std::span<std::byte> memory);
void log_event(std::uint64_t label, double samples) noexcept;
void log_collective(const Signature& signature) noexcept;

}  // namespace accdp
