#pragma once
#include <mpi.h>

#include <vector>

namespace accdp::mpi {

/// A communicator in which rank r is world_ranks[r] of MPI_COMM_WORLD. Called by those ranks only, which may make
/// others of another tag meanwhile. Blocks until all have come, because MPI has no such call that returns at once:
/// where it was initialised for one thread at a time, this rank's other groups rest meanwhile.
MPI_Comm create_comm(const std::vector<int>& world_ranks, int tag);

}  // namespace accdp::mpi
