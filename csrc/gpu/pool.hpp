#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coll/context.hpp"
#include "device/cuda_copies.hpp"
#include "gpu/gpu_groups.hpp"
#include "gpu/lead.hpp"
#include "gpu/readers.hpp"

namespace accdp {

/// What other processes may have open, so it is never freed: later groups use it again.
struct PoolExports {
  DeviceBuffer memory;
  Event published[2], read;
};

/// Device memory that ranks which share a GPU, or whose GPUs reach each other, have in common: two slots per rank, as
/// on the host (node/steps.hpp), in allocations of our own, because user's tensors may lie in memory whose handles
/// cannot be exported.
///
/// The rhythm is that of Steps, for work on streams: in each step every rank opens its slot, may write it, publishes,
/// and may then read all slots. `publish` records an event after the writes, and waiting for a rank makes the stream
/// wait for that event; so an event of step s also says that the reads of step s-1 are done, and a slot is free again
/// two steps later. Where events of other processes do not work, publish waits for the stream instead. No kernel waits
/// for another process, so nothing can keep a GPU from running what it waits for.
class Pool {
 public:
  /// Collective over the ranks of the node. Sets up the slots where each rank can open the others' memory: always meant
  /// to work on one GPU, and between GPUs that have peer access (NVLink, PCIe), where what is read is what is there.
  /// Where some cannot, groups of GPUs that reach each other share a pool of their own; all ranks of the node go
  /// through its steps together.
  Pool(Context& context, int device, std::size_t slot_bytes);
  Pool(const Pool&) = delete;
  /// After settle(). Memory and events stay, for this process's later groups: other ranks may still have them open, and
  /// to free them before these close them is undefined. They may even have yet to read the memory, when their streams
  /// come to that: so it goes to groups of the same ranks, or of more, whose pools wait for that first. With the
  /// process it goes, too: await_readers() waits before (gpu/readers.hpp).
  ~Pool();
  /// Waits until the stream has done its work. False where that cannot be expected any more, since it waits for other
  /// ranks and a call failed, or one of them is gone; the pool may then never be destroyed.
  bool settle(bool has_failed) noexcept;

  bool is_usable() const { return is_usable_; }
  bool is_shared() const { return is_usable_ && groups_.count() == 1; }  ///< by all ranks of the node
  const std::string& why_not() const { return why_not_; }                ///< why they cannot all share it
  const GpuGroups& groups() const { return groups_; }
  bool is_one_gpu() const { return one_gpu_; }  ///< of this rank's group
  /// The node's ranks by the GPU they are on, with the lanes of groups().
  const GpuGroups& gpus() const { return gpus_; }
  /// Whether what several ranks of a GPU contribute or want may pass to other GPUs of the group once for all of them:
  /// where a GPU of one group has several ranks and there are others in that group. The same on all ranks of the node.
  bool joins_gpus() const { return joins_gpus_; }
  bool uses_events() const { return events_; }
  const std::string& why_no_events() const { return why_no_events_; }  ///< of a pool that is usable
  std::size_t slot_bytes() const { return slot_bytes_; }
  cudaStream_t stream() const { return stream_.get(); }

  std::byte* open(Context& context);
  void publish(Context& context);
  void await_all(Context& context);
  /// Puts them on the stream; none writes what another reads or writes.
  void copy(std::span<const Copy> copies);
  /// After an operation: what this rank reads of the others' slots is on the stream.
  void hand_over_reads();
  std::byte* own_slot() const { return base(me_) + half(step_) * slot_bytes_; }
  /// Of a rank of the group.
  const std::byte* slot(int rank) const { return base(rank) + half(step_) * slot_bytes_; }

 private:
  struct Card;
  class EventProbe;
  /// So that a pool whose ranks do not all come is destroyed as any other: its memory may be open elsewhere.
  Pool(int me, int device, std::size_t slot_bytes);
  void exchange_cards(Context& context, const Card& mine, std::vector<Card>& cards);
  void mark(std::uint64_t number);
  bool reads_mark(int rank, std::uint64_t number);
  bool group_ranks(Context& context, const std::vector<Card>& cards);
  std::string open_events(const std::vector<Card>& cards);
  // pool_probe.cpp; what they return is empty where all is well.
  static std::string first_trouble(Context& context, const std::string& mine);
  std::string probe_events(Context& context);
  void wait_for_events();
  std::byte* base(int rank) const {
    return rank == me_ ? exports_.memory.data() : static_cast<std::byte*>(mappings_[rank].get());
  }
  static std::size_t half(std::uint64_t step) { return step % 2; }
  static void settle_all();

  int me_, device_;
  std::vector<Process> processes_;  // of the node's ranks
  std::shared_ptr<Readers> readers_;
  std::size_t slot_bytes_;
  std::string why_not_, why_no_events_;
  PoolExports exports_;
  Stream stream_;
  Lead lead_;
  std::atomic<bool> is_stuck_{false};
  GpuGroups groups_, gpus_;
  std::vector<IpcMapping> mappings_;        // by rank of the node; none for this one and other groups
  std::vector<Event> published_[2], read_;  // likewise
  bool one_gpu_ = true, joins_gpus_ = false, events_ = false, is_usable_ = false;
  std::uint64_t step_ = 0, awaited_ = 0;
};

}  // namespace accdp
