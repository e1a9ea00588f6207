#pragma once
#include <pybind11/pybind11.h>

namespace accdp::bind {
/// To be called before bind_group(), whose properties are of classes bound here.
void bind_plan(pybind11::module_& m);
}  // namespace accdp::bind
