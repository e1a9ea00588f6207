#pragma once

namespace accdp::mpi {

/// MPICH (5.0.2) uses a null request where UCX refuses at once to send: the connection to the receiver has broken, as
/// it does when that rank's process ends, be it in the middle of the call. While a thread has one of these MPI takes
/// what UCX refuses it for sent. Which it is not: whoever has begun the message is to look.
/// It needs to have come before libmpi: where mpi4py has loaded that one first MPI hears UCX, and the process ends.
class RefusedSends {
 public:
  RefusedSends() noexcept;
  ~RefusedSends();
  RefusedSends(const RefusedSends&) = delete;
  RefusedSends& operator=(const RefusedSends&) = delete;

  int status() const noexcept;  ///< UCX's of the last that was refused meanwhile, below 0; 0 where none was

 private:
  int before_;
};

}  // namespace accdp::mpi
