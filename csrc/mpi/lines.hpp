#pragma once
#include <vector>

namespace accdp::mpi {

/// Where no launcher ends a job whose rank dies: a connected stream socket to each rank of MPI_COMM_WORLD on another
/// node, which stays the caller's (accdp_comm/lines.py), or -1. Nothing is ever sent there. It breaks when the rank's
/// process ends; MPI says nothing of that, and MPICH over UCX crashes where something is sent to it thereafter. Once,
/// before there is a group.
void watch_lines(const std::vector<int>& fds);
/// Whether that rank's process has ended, as far as is known. Asks the kernel.
bool has_ended(int world_rank) noexcept;
/// The same as of the last look from here, at most some milliseconds ago: a question per tick of the kernel's clock.
bool had_ended(int world_rank) noexcept;
bool has_line(int world_rank) noexcept;
bool has_any_ended() noexcept;  ///< the same of all ranks
/// For a process that no longer takes part in MPI but may run on: for others it has ended now.
void break_lines() noexcept;

}  // namespace accdp::mpi
