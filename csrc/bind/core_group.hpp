#pragma once
#include <pybind11/pybind11.h>

namespace accdp::bind {
void bind_group(pybind11::module_& m);
}
