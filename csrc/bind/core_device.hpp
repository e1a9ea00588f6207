#pragma once
#include <pybind11/pybind11.h>

namespace accdp::bind {
/// To be called before bind_group(), whose methods take what is bound here.
void bind_device(pybind11::module_& m);
void bind_device_codec(pybind11::module_& m);
}  // namespace accdp::bind
