#pragma once
#include <Python.h>
#include <unistd.h>
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace accdp {

/// A scope without the GIL, which this thread has. One that wants it back when the interpreter has gone, since that
/// waits for no daemon thread, sleeps until the process ends. Before Python 3.14, which does the same, the interpreter
/// ends such a thread by unwinding its frames, and that ends the process where it meets a destructor.
class NoGil {
 public:
  NoGil() : state_(PyEval_SaveThread()) {}
  NoGil(const NoGil&) = delete;
  ~NoGil() {
#ifdef __GLIBCXX__
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      while (true) pause();
    }
#else
    PyEval_RestoreThread(state_);
#endif
  }

 private:
  PyThreadState* state_;
};

}  // namespace accdp
