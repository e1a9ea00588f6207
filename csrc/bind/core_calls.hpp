#pragma once
#include <pybind11/pybind11.h>

#include <memory>

#include "coll/group.hpp"

namespace accdp::bind {
/// Methods try_*: calls that take the arrays themselves.
void bind_calls(pybind11::class_<Group, std::shared_ptr<Group>>& group);
}  // namespace accdp::bind
