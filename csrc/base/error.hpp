#pragma once
#include <cerrno>
#include <exception>
#include <stdexcept>
#include <string>

namespace accdp {

/// Base of everything this library throws. The children differ in what the caller can do next.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// The call is wrong; nothing was sent; fix it and call again.
struct UsageError : Error {
  using Error::Error;
};
/// Ranks disagree about the operation. The group is broken on all of them.
struct MismatchError : Error {
  using Error::Error;
};
/// A rank did not come before the deadline. The group is broken.
struct PeerTimeout : Error {
  using Error::Error;
};
/// A rank exited, left the group or aborted it. The group is broken.
struct PeerDied : Error {
  using Error::Error;
};
/// Compressed bytes are damaged, or of a format that is not understood. The group is broken.
struct CodecError : Error {
  using Error::Error;
};
struct MpiError : Error {
  using Error::Error;
};
struct CudaError : Error {
  using Error::Error;
};
struct SystemCallError : Error {
  using Error::Error;
};

/// Thrown by the interrupt check (deadline.hpp) when the host language has an exception of its own
/// pending; the bindings let that one through.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

[[noreturn]] void throw_system(const char* call, int error_number, const char* file, int line);

/// The same error with `who` and `what` before its text: the rank, and in what it failed. As it is where its text
/// begins with `who`, or where what failed is not of this library, nor of what it works with (MPI, CUDA, codecs, the
/// system).
std::exception_ptr named(const std::exception_ptr& error, const std::string& who, const std::string& what);

}  // namespace accdp

/// For system calls that answer -1 and set errno; yields the answer otherwise.
#define ACCDP_SYSTEM(call)                                                      \
  ([&] {                                                                        \
    auto answer_ = (call);                                                      \
    if (answer_ == -1) ::accdp::throw_system(#call, errno, __FILE__, __LINE__); \
    return answer_;                                                             \
  }())
