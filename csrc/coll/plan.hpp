#pragma once
#include <string>
#include <vector>

#include "coll/asked.hpp"
#include "coll/call.hpp"
#include "coll/cost.hpp"

namespace accdp {

/// One way to do an operation.
struct Alternative {
  std::string algorithm;  ///< as Way names it
  int lanes = 1;
  Estimate estimate;   ///< seconds < 0: no model of it
  std::string remark;  ///< why it is not the one; empty: it was only slower
};

/// What a group would do, and what else it could: the answers of the functions by which the algorithms choose.
struct Plan {
  Alternative chosen;
  std::vector<Alternative> others;
};

/// bytes: of the array that one rank hands in: for allreduce, reduce, bcast all of it, for allgather and gather its
/// block, and so for scatter, for reduce_scatter and alltoall all blocks, which are of one size. A root is rank 0.
/// Throws UsageError for other operations.
Plan plan_of(OpKind op, const Operand& operand, const Shape& shape, const Machine& machine, const Asked& asked);

/// Operations that plan_of() takes.
const std::vector<OpKind>& planned_ops();

}  // namespace accdp
