#pragma once
#include <pybind11/pybind11.h>

#include <memory>

#include "coll/group.hpp"

namespace accdp::bind {
/// Methods try_*: calls that take the arrays themselves; and plain_array(), what they know of one.
void bind_calls(pybind11::module_& m, pybind11::class_<Group, std::shared_ptr<Group>>& group);
}  // namespace accdp::bind
