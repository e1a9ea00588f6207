#pragma once
#include <pybind11/pybind11.h>

#include <string>

#include "coll/plan.hpp"

namespace accdp::bind {
/// To be called before bind_group(), whose properties are of classes bound here.
void bind_plan(pybind11::module_& m);

OpKind planned_op_named(const std::string& name);  ///< throws UsageError
/// One dict for each way, the chosen one first.
pybind11::list entries_of(const Plan& plan);
}  // namespace accdp::bind
