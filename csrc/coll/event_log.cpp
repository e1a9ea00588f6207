#include "coll/event_log.hpp"

#include <atomic>
#include <mutex>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/hash.hpp"

namespace accdp {
namespace {

// The pointer says that there is a log; the rest is written before it, and events one at a time.
std::atomic<Event*> g_events{nullptr};
std::atomic_ref<std::uint64_t>* g_count = nullptr;
std::uint64_t g_capacity = 0;
std::mutex g_mutex;

}  // namespace

void log_events_into(std::span<std::byte> memory) {
  if (memory.size() < kEventLogHead + sizeof(Event))
    throw UsageError("log_events_into: " + std::to_string(memory.size()) + " bytes, expected at least " +
                     std::to_string(kEventLogHead + sizeof(Event)));
  std::lock_guard lock(g_mutex);
  // Both live as long as the process: a collective of a thread that nobody waits for may be the last to log.
  g_count = new std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(memory.data()));
  g_capacity = (memory.size() - kEventLogHead) / sizeof(Event);
  g_events.store(reinterpret_cast<Event*>(memory.data() + kEventLogHead), std::memory_order_release);
}

void log_event(std::uint64_t label, double samples) noexcept {
  if (!g_events.load(std::memory_order_acquire)) return;
  std::lock_guard lock(g_mutex);
  Event* events = g_events.load(std::memory_order_relaxed);
  const std::uint64_t number = g_count->load(std::memory_order_relaxed);
  events[number % g_capacity] = {nanoseconds(Clock::now()), label, samples};
  g_count->store(number + 1, std::memory_order_release);  // the reader, another process, sees whole events
}

void log_collective(const Signature& signature) noexcept {
  if (!g_events.load(std::memory_order_relaxed)) return;
  const std::uint64_t label =
      Hash()
          .add({signature.count, signature.layout, static_cast<std::uint64_t>(signature.root),
                std::uint64_t{signature.kind}, static_cast<std::uint64_t>(signature.type), std::uint64_t{signature.op}})
          .value();
  log_event(label & (~std::uint64_t{0} >> 2), 0);
}

}  // namespace accdp
