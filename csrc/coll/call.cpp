#include "coll/call.hpp"

#include <atomic>
#include <cstdio>

namespace accdp {
namespace {

constexpr const char* kNames[kOpKinds] = {
    "barrier", "bcast",    "allreduce", "reduce", "allgather",         "reduce_scatter",   "gather",
    "scatter", "alltoall", "send",      "recv",   "monitored_barrier", "bcast_compressed", "allreduce_compressed",
    "measure",
};

struct Counters {
  std::atomic<std::uint64_t> calls{0}, bytes{0}, nanoseconds{0};
};
Counters g_counters[kOpKinds];

}  // namespace

const char* name_of(OpKind kind) noexcept { return kNames[static_cast<int>(kind)]; }

std::string describe(const Signature& s) {
  std::string text = name_of(static_cast<OpKind>(s.kind));
  const auto kind = static_cast<OpKind>(s.kind);
  if (kind == OpKind::kBarrier) return text;
  if (s.op != 255) text += std::string(" (") + name_of(static_cast<ReduceOp>(s.op)) + ")";
  text += " of ";
  if (kind != OpKind::kAlltoall) text += std::to_string(s.count) + " ";  // its blocks are compared pair by pair
  text += name_of(s.type);
  if (s.memory == MemoryKind::kDevice) text += " in device memory";
  if (s.root >= 0) text += " with root " + std::to_string(s.root);
  if (s.check) {
    char digits[24];
    std::snprintf(digits, sizeof digits, "%08llx", static_cast<unsigned long long>(s.check & 0xffffffff));
    text += std::string(" against a reference with checksum ") + digits;
  }
  return text;
}

std::string difference(const Signature& a, Signature b) {
  b.layout = a.layout;
  if (a != b) return "ranks disagree: ";
  if (a.kind == static_cast<std::uint8_t>(OpKind::kBcastCompressed))
    return "ranks disagree on the tensors, codec, chunk size, algorithm, error bound or reference: ";
  if (a.kind == static_cast<std::uint8_t>(OpKind::kAllreduceCompressed))
    return "ranks disagree on the tensors, codec, chunk size or error bound, or on deterministic: ";
  const auto kind = static_cast<OpKind>(a.kind);
  if (kind == OpKind::kAllreduce || kind == OpKind::kReduce) return "ranks disagree on deterministic: ";
  if (kind == OpKind::kReduceScatter) return "ranks disagree on the sizes of their blocks, or on deterministic: ";
  return "ranks disagree on the sizes of their blocks: ";
}

std::vector<OpStats> op_stats() {
  std::vector<OpStats> rows;
  for (int i = 0; i < kOpKinds; ++i)
    if (auto calls = g_counters[i].calls.load())
      rows.push_back(
          {static_cast<OpKind>(i), calls, g_counters[i].bytes.load(), g_counters[i].nanoseconds.load() * 1e-9});
  return rows;
}

void reset_op_stats() {
  for (Counters& c : g_counters) c.calls = c.bytes = c.nanoseconds = 0;
}

void count_op(OpKind kind, std::uint64_t bytes, Clock::duration time) noexcept {
  Counters& c = g_counters[static_cast<int>(kind)];
  c.calls.fetch_add(1, std::memory_order_relaxed);
  c.bytes.fetch_add(bytes, std::memory_order_relaxed);
  c.nanoseconds.fetch_add(std::chrono::nanoseconds(time).count(), std::memory_order_relaxed);
}

}  // namespace accdp
