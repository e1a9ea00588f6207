#pragma once

namespace accdp {

/// The process that something was made in. One that was forked from it has a copy of the objects but not the threads,
/// and what it writes to shared memory would count as said by the other.
class Birthplace {
 public:
  Birthplace() noexcept : forks_(forks()) {}
  bool is_elsewhere() const noexcept { return forks_ != forks(); }

 private:
  static unsigned forks() noexcept;  ///< that led from the process which loaded the library to this one
  unsigned forks_;
};

}  // namespace accdp
