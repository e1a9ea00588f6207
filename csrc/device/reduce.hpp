#pragma once
#include <cstddef>
#include <span>

#include "base/types.hpp"

namespace accdp {

/// What an elementwise reduction does: the type, the operation and, for an average, by how many
/// contributions the final sum is divided (0 while the sum is still partial).
struct Reduction {
  Datatype type;
  ReduceOp op;
  int divisor = 0;

  Reduction partial() const { return {type, op, 0}; }
};

/// Whether `op` means something for `type`: no bit operations on floats, no order of complex numbers, no average of
/// bools.
bool is_reducible(Datatype type, ReduceOp op) noexcept;
/// Throws UsageError where it does not.
void check_reducible(Datatype type, ReduceOp op);

/// dst[i] = srcs[0][i] op srcs[1][i] op ..., in that order. `dst` may be one of `srcs`.
/// Floats of 8 and 16 bits accumulate in float32 and round once. Buffers may have any alignment.
void reduce(void* dst, std::span<const void* const> srcs, std::size_t count, const Reduction& how);

/// Floats of 8 and 16 bits to float32 and, rounded to nearest even, back.
void widen(void* to_float32, const void* from, std::size_t count, Datatype from_type);
void narrow(void* to, const void* from_float32, std::size_t count, Datatype to_type);

const char* reduce_isa();  ///< instruction set chosen for this processor

}  // namespace accdp
