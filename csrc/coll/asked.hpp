#pragma once
#include <cstddef>
#include <optional>

#include "base/settings.hpp"
#include "coll/cost.hpp"
#include "coll/schedule.hpp"

namespace accdp {

/// What settings ask for of a group's operations. A group keeps what they said when it was formed, where its ranks
/// agreed on them: ranks that read them anew at each call would wait for each other, each in another algorithm, once
/// one of them had changed a setting, or another thread of it had while calls were queued.
struct Asked {
  ReduceAlgorithm allreduce = ReduceAlgorithm::kAuto;  ///< between nodes, as is the next
  BcastAlgorithm bcast = BcastAlgorithm::kAuto;
  bool by_mpi = false;         ///< the MPI library's own collectives, where it has them
  bool in_rank_order = false;  ///< reductions give the same bits wherever the ranks are; of a group: at first
  /// Of compressed operations that say no other, and of a broadcast's messages between nodes.
  std::size_t stream_chunk_bytes = Settings().codec_chunk_bytes;
  bool stages_devices = false;  ///< device memory goes through host memory
  bool orders_by_host = false;  ///< devices do not wait for each other's events, hosts do
  std::size_t device_slot_bytes = Settings().gpu_slot_bytes;
  std::optional<bool> mpi_takes_device_memory = {};  ///< none: as the MPI library says
};
Asked asked_by_settings();

}  // namespace accdp
