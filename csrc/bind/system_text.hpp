#pragma once
// Text of the system (environment variables, paths, messages with them in it) need not be UTF-8. Python has its bytes
// in a str as os.environ does, and takes them from there.
#include <pybind11/pybind11.h>

#include <string>

namespace accdp::bind {

inline pybind11::str decode_system(const std::string& text) {
  PyObject* const found = PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  if (!found) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(found);
}

inline std::string encode_system(const pybind11::str& text) {
  const auto bytes = pybind11::reinterpret_steal<pybind11::bytes>(PyUnicode_EncodeFSDefault(text.ptr()));
  if (!bytes) throw pybind11::error_already_set();
  return bytes;
}

}  // namespace accdp::bind
