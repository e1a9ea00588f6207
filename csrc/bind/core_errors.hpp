#pragma once
#include <pybind11/pybind11.h>

#include <exception>

namespace accdp::bind {

/// The core's errors as Python classes of the module, what throws them in C++ translated to them. A capsule with the
/// translator is for modules of other versions of pybind11 (capsule.hpp).
void bind_errors(pybind11::module_& m);

/// Makes it the interpreter's exception, as pybind11 does with what leaves a function of its own.
void raise_in_python(const std::exception_ptr& error) noexcept;

}  // namespace accdp::bind
