#pragma once
#include "coll/collectives.hpp"

namespace accdp {

/// The MPI library's own collectives, on host memory; gather and scatter, for which it is not asked, as always. For
/// groups with a wire.
Collectives& mpi_collectives();
void bcast_by_mpi(Context& context, Bytes data, int root);

}  // namespace accdp
