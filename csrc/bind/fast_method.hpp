#pragma once
#include <pybind11/pybind11.h>

#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "bind/core_errors.hpp"

namespace accdp::bind {

// Methods for calls whose time counts in tenths of a microsecond. pybind11 binds a method object, looks up the type of
// each argument and keeps them all in vectors, at each call; a method of CPython's own protocol (METH_FASTCALL) gets
// the arguments where the interpreter has them. For arguments that the function looks at itself, by position only.

inline PyObject* to_python(bool value) { return PyBool_FromLong(value); }
inline PyObject* to_python(int value) { return PyLong_FromLong(value); }
inline PyObject* to_python(pybind11::object value) { return value.release().ptr(); }

/// What an object of Python's shares, and that object.
template <class Held>
struct Shared {
  const std::shared_ptr<Held>& held;
  pybind11::handle object;
};

/// What a function asks for as its first argument: the object itself, or what shares it.
template <class Self>
Self* self_of(PyObject*, pybind11::detail::value_and_holder held, Self*) {
  return held.value_ptr<Self>();
}
template <class Held>
std::optional<Shared<Held>> self_of(PyObject* object, pybind11::detail::value_and_holder held, const Shared<Held>*) {
  if (!held.holder_constructed()) return std::nullopt;
  return Shared<Held>{held.holder<std::shared_ptr<Held>>(), object};
}

template <auto function>
struct FastMethod;
template <class Result, class Self, class... Args, Result (*function)(Self&, Args...)>
struct FastMethod<function> {
  static PyObject* call(PyObject* object, PyObject* const* args, Py_ssize_t given) noexcept {
    constexpr Py_ssize_t kArguments = sizeof...(Args);
    // The interpreter has seen that `object` is of the class, and of the class there is one base and one holder.
    const auto self = self_of(object, reinterpret_cast<pybind11::detail::instance*>(object)->get_value_and_holder(),
                              static_cast<Self*>(nullptr));
    if (!self || given != kArguments)
      return PyErr_Format(PyExc_TypeError, "expected an object that was made, and %zd arguments, got %zd", kArguments,
                          given);
    try {
      return [&]<std::size_t... i>(std::index_sequence<i...>) {
        return to_python(function(*self, pybind11::handle(args[i])...));
      }(std::index_sequence_for<Args...>());
    } catch (...) {
      raise_in_python(std::current_exception());
      return nullptr;
    }
  }
};

/// Makes `function` a method of the class, called by a reference to the object, or by what shares it (Shared), and by
/// handles.
template <auto function, class Class>
Class& define_fast(Class& type, const char* name) {
  // The interpreter keeps its address.
  static PyMethodDef method{name,
                            reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&FastMethod<function>::call)),
                            METH_FASTCALL, nullptr};
  type.attr(name) = pybind11::reinterpret_steal<pybind11::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &method));
  return type;
}

}  // namespace accdp::bind
