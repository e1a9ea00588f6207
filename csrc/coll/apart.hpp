#pragma once
#include <span>
#include <vector>

#include "base/types.hpp"

namespace accdp {

/// What a call on host memory reads, apart from what it writes: algorithms write results while they still read. They
/// may do so where input and result are one memory, block `own_in` of `ins` and `own_out` of `outs`.
bool is_overwritten(std::span<const ConstBytes> ins, std::span<const Bytes> outs, int own_in, int own_out);

/// Copies of blocks.
class Copies {
 public:
  explicit Copies(std::span<const ConstBytes> blocks);
  Copies(const Copies&) = delete;
  const std::vector<ConstBytes>& blocks() const { return blocks_; }

 private:
  std::vector<ConstBytes> blocks_;
  std::vector<std::byte> memory_;
};

}  // namespace accdp
