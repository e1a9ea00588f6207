#pragma once
#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "base/birthplace.hpp"

namespace accdp::mpi {

/// Bytes from every rank of a communicator to every rank of it, for ranks that form a group. On a duplicate: whatever a
/// rank does after it has given up, its next collectives on the communicator meet those of the other ranks. Collective.
class Exchange {
 public:
  explicit Exchange(MPI_Comm comm);  ///< begins; MPI_COMM_NULL: our duplicate of MPI_COMM_WORLD
  ~Exchange();
  Exchange(const Exchange&) = delete;
  /// Everybody's bytes in rank order. Once it has thrown no more can be exchanged.
  std::vector<std::string> allgather(const std::string& mine, double timeout_s);

 private:
  struct Duplicate;
  std::unique_ptr<Duplicate> duplicate_;
  int size_ = 0;
  const Birthplace birthplace_;
};

}  // namespace accdp::mpi
