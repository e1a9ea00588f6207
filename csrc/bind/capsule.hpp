#pragma once
#include <pybind11/pybind11.h>

#include <exception>
#include <memory>

#include "base/no_gil.hpp"

namespace accdp::bind {

// Objects cross from one extension module to another in capsules, because the modules may be built
// with different versions of pybind11 (torch brings its own).

template <class T>
pybind11::capsule make_capsule(std::shared_ptr<T> object, const char* name) {
  return pybind11::capsule(new std::shared_ptr<T>(std::move(object)), name, [](PyObject* capsule) {
    EndWithoutGil()(static_cast<std::shared_ptr<T>*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule))));
  });
}

template <class T>
std::shared_ptr<T> from_capsule(const pybind11::object& object, const char* name) {
  void* held = PyCapsule_GetPointer(object.ptr(), name);
  if (!held) throw pybind11::error_already_set();
  return *static_cast<std::shared_ptr<T>*>(held);
}

/// Makes an error of the core Python's current one; throws on what is none.
using ErrorTranslator = void (*)(std::exception_ptr);

constexpr const char* kErrorTranslatorCapsule = "accdp.ErrorTranslator";
constexpr const char* kGroupCapsule = "accdp.Group";
constexpr const char* kNoticesCapsule = "accdp.Notices";
constexpr const char* kWireCapsule = "accdp.Wire";
constexpr const char* kDeviceRouteCapsule = "accdp.DeviceRoute";

}  // namespace accdp::bind
