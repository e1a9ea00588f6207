#pragma once
#include <mpi.h>

#include "mpi/wire.hpp"

namespace accdp::mpi {

MPI_Datatype native_type(Datatype type);       ///< MPI_DATATYPE_NULL where MPI has none
MPI_Op native_op(Datatype type, ReduceOp op);  ///< MPI_OP_NULL where MPI has none; kAvg: the sum
void start_native(const Wire::NativeCall& call, MPI_Comm comm, MPI_Request& request);

}  // namespace accdp::mpi
