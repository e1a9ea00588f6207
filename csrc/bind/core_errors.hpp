#pragma once
#include <pybind11/pybind11.h>

namespace accdp::bind {

/// The core's errors as Python classes of the module, what throws them in C++ translated to them. A capsule with the
/// translator is for modules of other versions of pybind11 (capsule.hpp).
void bind_errors(pybind11::module_& m);

}  // namespace accdp::bind
