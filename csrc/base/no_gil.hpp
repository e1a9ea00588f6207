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
