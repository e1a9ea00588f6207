#include "coll/asked.hpp"

#include "base/error.hpp"

namespace accdp {
namespace {

ReduceAlgorithm reduce_algorithm_named(const std::string& name) {
  for (const ReduceAlgorithmRow& row : reduce_algorithm_rows())
    if (name == row.name) return row.id;
  throw UsageError("ACCDP_ALLREDUCE=" + name + ": expected a row of `accdp info`");
}

}  // namespace

Asked asked_by_settings() {
  const Settings& set = settings();
  Asked asked{.allreduce = reduce_algorithm_named(set.allreduce),
              .bcast = bcast_algorithm_named(set.bcast_algorithm),
              .by_mpi = set.baseline == "mpi",
              .in_rank_order = set.deterministic == "on",
              .stream_chunk_bytes = static_cast<std::size_t>(set.codec_chunk_bytes),
              .stages_devices = set.gpu_path == "staged",
              .orders_by_host = set.gpu_path == "by_host",
              .device_slot_bytes = static_cast<std::size_t>(set.gpu_slot_bytes)};
  if (set.mpi_cuda != "auto") asked.mpi_takes_device_memory = set.mpi_cuda == "on";
  return asked;
}

}  // namespace accdp
