#pragma once
#include <memory>
#include <string>

#include "device/cuda.hpp"

namespace accdp {

// Pinned memory that the process keeps from one use to the next, because to pin and to unpin it takes hundreds of
// microseconds each and may make the host wait for the whole device. What is on loan and what is kept are together
// never more than ACCDP_GPU_PINNED_BYTES. Who gets none goes through pageable memory (host_room.hpp).

/// Two halves, because who copies through pinned memory fills one while the other is emptied; who needs one piece uses
/// the whole, and the events of the first.
struct PinnedBlock {
  PinnedBuffer memory;
  Event used_until[2];   // none: not used yet
  int device = -1;       // of the events
  bool is_free = false;  // as the pool saw it last: no device uses it
  std::string trouble;   // why nobody can tell when a device has done with it
};

/// Memory on loan, or none. It may go back while a device still works on it: nobody gets it, and it is not freed,
/// before that is done.
class PinnedLease {
 public:
  PinnedLease() = default;
  explicit PinnedLease(std::unique_ptr<PinnedBlock> block) : block_(block.release()) {}
  explicit operator bool() const { return block_ != nullptr; }
  /// At least as much as was asked for.
  Bytes span() const { return block_ ? block_->memory.span() : Bytes(); }
  std::byte* data() const { return span().data(); }

  /// Surrounds what puts work on a stream that uses a half of the memory: at the end of the scope, however it ends, the
  /// memory is in use until the stream has come to here. The stream is of the current device.
  class Use {
   public:
    Use(PinnedLease& lease, cudaStream_t stream, std::size_t half = 0)
        : block_(*lease.block_), stream_(stream), half_(half) {}
    Use(const Use&) = delete;
    ~Use();

   private:
    PinnedBlock& block_;
    cudaStream_t stream_;
    std::size_t half_;
  };
  /// Waits until the last use of a half has ended.
  void await(std::size_t half = 0);

 private:
  struct GiveBack {
    void operator()(PinnedBlock* block) const noexcept;
  };
  std::unique_ptr<PinnedBlock, GiveBack> block_;
};

/// For as long as an operation takes, which may wait for other ranks. Leaves room for a window. None where there is not
/// enough room, or the system has no more memory that can be pinned.
PinnedLease hold_pinned(std::size_t bytes);
/// A window for so many bytes that pass through it: so many, or the most that a window has. For as long as copies take.
PinnedLease pinned_window(std::size_t bytes);
/// 8 MiB, less where ACCDP_GPU_PINNED_BYTES is less than twice that; 0 where there can be none.
std::size_t most_window_bytes();

/// What the process has pinned so, on loan or kept.
std::size_t pinned_bytes();

}  // namespace accdp
