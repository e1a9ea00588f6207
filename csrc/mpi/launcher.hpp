#pragma once

namespace accdp::mpi {

/// What MPI_Finalize says to the launcher, for a process that leaves MPI without: mpiexec would take it for one that
/// died and end the others. Nothing may be asked of the launcher after. pmi_fd: where it answers PMI-1; -1: nowhere.
void say_finalized(int pmi_fd) noexcept;

}  // namespace accdp::mpi
