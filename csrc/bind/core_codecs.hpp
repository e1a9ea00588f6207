#pragma once
#include <pybind11/pybind11.h>

namespace accdp::bind {
/// codecs(), encode_chunk() and what else looks at codecs without a group.
void bind_codecs(pybind11::module_& m);
}  // namespace accdp::bind
