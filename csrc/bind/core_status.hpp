#pragma once
#include <pybind11/pybind11.h>

namespace accdp::bind {

void bind_status(pybind11::module_& m);

}  // namespace accdp::bind
