// The MPI library's own collectives, as baselines: which of its datatypes and operations stand for ours, and the calls.
#include "mpi/native.hpp"

#include "mpi/world.hpp"

namespace accdp::mpi {
namespace {

MPI_Op op_on_bools(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor: return MPI_LOR;
    case ReduceOp::kProd:
    case ReduceOp::kMin:
    case ReduceOp::kBand: return MPI_LAND;
    case ReduceOp::kBxor: return MPI_LXOR;
    case ReduceOp::kAvg: break;
  }
  return MPI_OP_NULL;
}

}  // namespace

MPI_Datatype native_type(Datatype type) {
  switch (type) {
    case Datatype::kBool: return MPI_C_BOOL;
    case Datatype::kU8: return MPI_UINT8_T;
    case Datatype::kI8: return MPI_INT8_T;
    case Datatype::kU16: return MPI_UINT16_T;
    case Datatype::kI16: return MPI_INT16_T;
    case Datatype::kU32: return MPI_UINT32_T;
    case Datatype::kI32: return MPI_INT32_T;
    case Datatype::kU64: return MPI_UINT64_T;
    case Datatype::kI64: return MPI_INT64_T;
    case Datatype::kF32: return MPI_FLOAT;
    case Datatype::kF64: return MPI_DOUBLE;
    case Datatype::kC64: return MPI_C_FLOAT_COMPLEX;
    case Datatype::kC128: return MPI_C_DOUBLE_COMPLEX;
    case Datatype::kF16:
    case Datatype::kBF16:  // no release of the standard has them, and what libraries add they round at every step
    case Datatype::kF8E4M3:
    case Datatype::kF8E5M2:
    case Datatype::kBytes: break;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op native_op(Datatype type, ReduceOp op) {
  if (type == Datatype::kBool) return op_on_bools(op);
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return MPI_SUM;
    case ReduceOp::kProd: return MPI_PROD;
    case ReduceOp::kMin: return MPI_MIN;
    case ReduceOp::kMax: return MPI_MAX;
    case ReduceOp::kBand: return MPI_BAND;
    case ReduceOp::kBor: return MPI_BOR;
    case ReduceOp::kBxor: return MPI_BXOR;
  }
  return MPI_OP_NULL;
}

void start_native(const Wire::NativeCall& call, MPI_Comm comm, MPI_Request& request) {
  using Call = Wire::NativeCall;
  const bool reads_elsewhere = call.kind == Call::kReduceScatter || call.kind == Call::kAlltoall;
  const void* in = call.in.data() == call.out.data() && !reads_elsewhere ? MPI_IN_PLACE : call.in.data();
  void* out = call.out.data();
  const int count = static_cast<int>(call.in.size() / element_bytes(call.type));
  const MPI_Datatype type = native_type(call.type);
  const MPI_Op op = native_op(call.type, call.op);
  switch (call.kind) {
    case Call::kBcast:
      ACCDP_MPI(MPI_Ibcast(out, static_cast<int>(call.out.size()), MPI_BYTE, call.root, comm, &request));
      return;
    case Call::kAllreduce: ACCDP_MPI(MPI_Iallreduce(in, out, count, type, op, comm, &request)); return;
    case Call::kReduce: ACCDP_MPI(MPI_Ireduce(in, out, count, type, op, call.root, comm, &request)); return;
    case Call::kReduceScatter:
      ACCDP_MPI(MPI_Ireduce_scatter(in, out, call.in_counts.data(), type, op, comm, &request));
      return;
    case Call::kAllgather:
      ACCDP_MPI(MPI_Iallgatherv(in, count, MPI_BYTE, out, call.out_counts.data(), call.out_offsets.data(), MPI_BYTE,
                                comm, &request));
      return;
    case Call::kAlltoall:
      ACCDP_MPI(MPI_Ialltoallv(in, call.in_counts.data(), call.in_offsets.data(), MPI_BYTE, out, call.out_counts.data(),
                               call.out_offsets.data(), MPI_BYTE, comm, &request));
      return;
  }
}

}  // namespace accdp::mpi
