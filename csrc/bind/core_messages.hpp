#pragma once
#include <pybind11/pybind11.h>

#include <memory>

#include "coll/group.hpp"

namespace accdp::bind {
/// Lets go of messages that are done and that nobody asks about any more, and of their arrays. With the GIL.
void sweep_messages();

struct Sweep {
  ~Sweep() { sweep_messages(); }
};

/// Class MessageWork, and what starts and awaits one.
void bind_messages(pybind11::module_& m, pybind11::class_<Group, std::shared_ptr<Group>>& group);
}  // namespace accdp::bind
