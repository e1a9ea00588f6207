#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "node/board.hpp"

namespace accdp {

enum class OpKind : std::uint8_t {
  kBarrier,
  kBcast,
  kAllreduce,
  kReduce,
  kAllgather,
  kReduceScatter,
  kGather,
  kScatter,
  kAlltoall,
  kSend,
  kRecv,
  kMonitoredBarrier,
  kBcastCompressed,
  kAllreduceCompressed,
  kMeasure,
};
constexpr int kOpKinds = 15;
const char* name_of(OpKind kind) noexcept;

/// "bcast of 1024 float32 from root 0": what a rank did, for the message when ranks disagree.
std::string describe(const Signature& signature);
/// "ranks disagree: ", or on what, where the descriptions of both are equal.
std::string difference(const Signature& a, Signature b);

/// One row of `accdp_comm.stats()`: what this process did, over all groups.
struct OpStats {
  OpKind kind;
  std::uint64_t calls;
  std::uint64_t bytes;  ///< that the caller handed in (send side; receive side where there is no other)
  double seconds;       ///< inside the operation, waiting for other ranks included
};
std::vector<OpStats> op_stats();
void reset_op_stats();
void count_op(OpKind kind, std::uint64_t bytes, Clock::duration time) noexcept;

}  // namespace accdp
