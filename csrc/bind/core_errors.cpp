#include "bind/core_errors.hpp"

#include <new>
#include <vector>

#include "base/error.hpp"
#include "bind/capsule.hpp"
#include "bind/system_text.hpp"

namespace py = pybind11;

namespace accdp::bind {
namespace {

struct ErrorRow {
  PyObject* type;
  bool (*is)(const std::exception&);
};

/// A base stands before its children.
std::vector<ErrorRow>& error_rows() {
  static std::vector<ErrorRow> rows;
  return rows;
}

/// A Python exception that is also of the built-in type that people already catch.
template <class Cpp>
void bind_error(py::module_& m, const char* name, py::tuple bases, const char* doc) {
  py::dict body;
  body["__doc__"] = doc;
  body["__module__"] = "accdp_comm";
  PyObject* type = py::module_::import("builtins").attr("type")(name, bases, body).release().ptr();
  m.attr(name) = py::reinterpret_borrow<py::object>(type);
  error_rows().push_back(
      {type, [](const std::exception& error) { return dynamic_cast<const Cpp*>(&error) != nullptr; }});
}

void set_python_error(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Interrupted&) {  // the signal handler's own exception is pending
  } catch (const Error& e) {
    auto row = error_rows().rbegin();
    while (!row->is(e)) ++row;  // Error itself ends it
    PyErr_SetObject(row->type, decode_system(e.what()).ptr());
  }
}

}  // namespace

void raise_in_python(const std::exception_ptr& error) noexcept {
  try {
    set_python_error(error);
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

void bind_errors(py::module_& m) {
  auto builtin = [](PyObject* type) { return py::reinterpret_borrow<py::object>(type); };
  bind_error<Error>(m, "Error", py::make_tuple(builtin(PyExc_RuntimeError)), "Base of all errors of accdp.");
  py::object base = m.attr("Error");
  bind_error<UsageError>(m, "UsageError", py::make_tuple(base, builtin(PyExc_ValueError)),
                         "The call is wrong. Nothing was sent; fix it and call again.");
  bind_error<MismatchError>(m, "MismatchError", py::make_tuple(base),
                            "Ranks disagree about an operation. The group is broken on all of them.");
  bind_error<PeerTimeout>(
      m, "PeerTimeout", py::make_tuple(base, builtin(PyExc_TimeoutError)),
      "A rank did not come before the deadline: the group is broken. Or the limit of a wait() has passed: it is not.");
  bind_error<PeerDied>(m, "PeerDied", py::make_tuple(base, builtin(PyExc_ConnectionError)),
                       "A rank exited or left the group. The group is broken.");
  bind_error<CodecError>(m, "CodecError", py::make_tuple(base),
                         "Compressed bytes are damaged, or of a format that is not understood. The group is broken.");
  bind_error<MpiError>(m, "MpiError", py::make_tuple(base), "An MPI call failed.");
  bind_error<CudaError>(m, "CudaError", py::make_tuple(base), "A CUDA call failed.");
  bind_error<SystemCallError>(m, "SystemCallError", py::make_tuple(base, builtin(PyExc_OSError)),
                              "A system call failed.");
  py::register_exception_translator(set_python_error);
  m.attr("_error_translator") =
      make_capsule(std::make_shared<ErrorTranslator>(set_python_error), kErrorTranslatorCapsule);
}

}  // namespace accdp::bind
