#pragma once
#include <pybind11/pybind11.h>

#include <memory>

#include "coll/group.hpp"

namespace accdp::bind {
/// Class MessageWork, and what starts and awaits one.
void bind_messages(pybind11::module_& m, pybind11::class_<Group, std::shared_ptr<Group>>& group);
}  // namespace accdp::bind
