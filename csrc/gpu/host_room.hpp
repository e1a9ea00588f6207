#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "codec/cuda_transforms.hpp"
#include "gpu/pinned_pool.hpp"

namespace accdp {

/// How transfers of several pieces are put on a stream: fetch_async() where its kernel is loaded.
using PutCopies = void (*)(std::span<const Transfer> transfers, cudaStream_t stream);
/// A copy each.
void copy_each(std::span<const Transfer> transfers, cudaStream_t stream);

/// Host memory that data passes through between a device and what works in the host. Pinned, on loan from the process's
/// pool, where that has so much; else pageable, of which nothing is taken from the system before it is written, and
/// then data comes and goes through a pinned window: while the device fills or empties one half, the processor does the
/// other. Where there is not even a window, the driver copies to and from pageable memory, which takes longer.
class HostRoom {
 public:
  HostRoom() = default;
  /// Never pinned where it is larger than `most_pinned`.
  explicit HostRoom(std::size_t bytes, std::size_t most_pinned = SIZE_MAX);

  Bytes span() const { return {is_pinned() ? pinned_.data() : pageable_.get(), bytes_}; }
  std::byte* data() const { return span().data(); }
  bool is_pinned() const { return static_cast<bool>(pinned_); }
  /// For who puts copies on a stream itself.
  PinnedLease& lease() { return pinned_; }

  /// From the device to the room; waits until all is there.
  void fetch(std::span<const Transfer> transfers, cudaStream_t stream, PutCopies put = copy_each);
  /// From the room to the device, in the order of the stream. The room may go at once; one that is pinned may change
  /// when the stream has come to here.
  void deliver(std::span<const Transfer> transfers, cudaStream_t stream);

  /// After a failure: of what MPI was given it may still read and write, so nobody gets this memory any more.
  void leave_to_wire() &&;

 private:
  void copy_and_wait(std::span<const Transfer> transfers, cudaStream_t stream);  ///< of pageable memory

  PinnedLease pinned_;
  std::unique_ptr<std::byte[]> pageable_;
  std::size_t bytes_ = 0;
};

}  // namespace accdp
