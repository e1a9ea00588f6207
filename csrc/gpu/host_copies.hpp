#pragma once
#include <memory>
#include <mutex>

#include "coll/device_route.hpp"
#include "device/cuda.hpp"
#include "gpu/codec_copies.hpp"

namespace accdp {

/// Pinned memory that one use leaves for the next, because to pin memory takes longer than to fill it.
class PinnedSpare {
 public:
  PinnedBuffer take(std::size_t bytes);
  /// used_until: of the work that still uses it, or none.
  void put(PinnedBuffer memory, Event used_until);

 private:
  std::mutex mutex_;
  PinnedBuffer memory_;
  Event used_until_;
};

class PinnedCopies final : public HostCopies {
 public:
  PinnedCopies(std::shared_ptr<PinnedSpare> spare, std::shared_ptr<SpareWorkshop> workshop,
               FarCopies::NodePool node_pool, int device, cudaStream_t stream, std::vector<DeviceBlock> blocks);
  PinnedCopies(const PinnedCopies&) = delete;
  ~PinnedCopies() override;

  const std::vector<Bytes>& blocks() const override { return copies_; }
  void deliver() override;
  FarMemory& far() override;

 private:
  std::shared_ptr<PinnedSpare> spare_;
  std::shared_ptr<SpareWorkshop> workshop_;
  int device_;
  cudaStream_t stream_;
  std::vector<DeviceBlock> blocks_;
  std::vector<Bytes> copies_;
  PinnedBuffer memory_;
  Event delivered_;
  std::unique_ptr<FarCopies> far_;  // last: its end waits for work on the memory above
};

}  // namespace accdp
