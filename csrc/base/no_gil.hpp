#pragma once
#include <Python.h>
#include <unistd.h>
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace accdp {

/// Takes the GIL. A thread that wants it when the interpreter has gone, since that waits for no daemon thread, sleeps
/// until the process ends. Before Python 3.14, which does the same, the interpreter ends such a thread by unwinding its
/// frames, and that ends the process where it meets a destructor.
template <class Take>
auto take_gil(Take take) {
#ifdef __GLIBCXX__
  try {
    return take();
  } catch (const abi::__forced_unwind&) {
    while (true) pause();
  }
#else
  return take();
#endif
}

/// A scope without the GIL, which this thread has.
class NoGil {
 public:
  NoGil() : state_(PyEval_SaveThread()) {}
  NoGil(const NoGil&) = delete;
  ~NoGil() {
    take_gil([this] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* state_;
};

/// Calls it without the GIL if this thread has it: for waits for threads that may need it.
template <class Call>
void without_gil(Call call) {
  if (!Py_IsInitialized() || !PyGILState_Check()) return call();
  const NoGil nogil;
  call();
}

/// Ends an object so: of destructors that wait.
struct EndWithoutGil {
  template <class T>
  void operator()(T* object) const {
    without_gil([object] { delete object; });
  }
};

/// A scope with the GIL, in what may end on any thread.
class WithGil {
 public:
  WithGil() : state_(take_gil([] { return PyGILState_Ensure(); })) {}
  WithGil(const WithGil&) = delete;
  ~WithGil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

}  // namespace accdp
