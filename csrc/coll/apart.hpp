#pragma once
#include <functional>
#include <span>
#include <vector>

#include "base/types.hpp"

namespace accdp {

/// Which block of the results may begin where a block of what is read does, by their numbers.
using MayMeet = std::function<bool(int in, int out)>;

/// Whether a call on host memory writes to what it still reads: results are written while others are read. Blocks that
/// the call's algorithm keeps apart in time may be one memory.
bool is_overwritten(std::span<const ConstBytes> ins, std::span<const Bytes> outs, const MayMeet& may_meet);

/// Copies of blocks in `room`, which is as long as all of them: memory that outlives what a call that fails has under
/// way, as a collective's scratch does.
std::vector<ConstBytes> copies(std::span<const ConstBytes> blocks, Bytes room);

}  // namespace accdp
