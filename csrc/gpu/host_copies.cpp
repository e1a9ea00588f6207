#include "gpu/host_copies.hpp"

#include <algorithm>
#include <utility>

namespace accdp {
namespace {

constexpr std::size_t kAlign = 256;
/// Copies do not touch: spans of two of them never look like one.
std::size_t room_for(std::size_t bytes) { return (bytes + 1 + kAlign - 1) / kAlign * kAlign; }

}  // namespace

PinnedBuffer PinnedSpare::take(std::size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    if (memory_.span().size() >= bytes) {
      if (used_until_) synchronize(used_until_);
      return std::exchange(memory_, {});
    }
  }
  return PinnedBuffer(bytes);
}

void PinnedSpare::put(PinnedBuffer memory, Event used_until) {
  {
    std::lock_guard lock(mutex_);
    if (memory.span().size() > memory_.span().size()) {
      std::swap(memory_, memory);
      std::swap(used_until_, used_until);
    }
  }
  if (used_until) drain(used_until);  // before the smaller one of both goes
}

PinnedCopies::PinnedCopies(std::shared_ptr<PinnedSpare> spare, std::shared_ptr<SpareWorkshop> workshop,
                           FarCopies::NodePool node_pool, int device, cudaStream_t stream,
                           std::vector<DeviceBlock> blocks)
    : spare_(std::move(spare)),
      workshop_(std::move(workshop)),
      device_(device),
      stream_(stream),
      blocks_(std::move(blocks)) {
  const DeviceGuard guard(device_);
  std::size_t bytes = 0;
  for (const DeviceBlock& block : blocks_) bytes += room_for(block.data.size());
  memory_ = spare_->take(bytes);
  bool waits = false;
  std::byte* at = memory_.data();
  for (const DeviceBlock& block : blocks_) {
    copies_.emplace_back(at, block.data.size());
    at += room_for(block.data.size());
    if (!block.is_read) continue;
    copy_async(copies_.back().data(), block.data.data(), block.data.size(), stream_);
    waits = true;
  }
  if (waits) synchronize(stream_);
  far_ = std::make_unique<FarCopies>(workshop_, std::move(node_pool), device_, stream_, blocks_, copies_);
}

PinnedCopies::~PinnedCopies() {
  const RelaxedCapture relaxed;
  far_.reset();
  spare_->put(std::move(memory_), std::move(delivered_));
  spare_.reset();  // may be the last owner of what CUDA made
}

FarMemory& PinnedCopies::far() {
  const DeviceGuard guard(device_);
  workshop_->load_kernels();
  return *far_;
}

void PinnedCopies::deliver() {
  const DeviceGuard guard(device_);
  try {
    far_->deliver();
    delivered_ = make_event();
    record(delivered_, stream_);
  } catch (...) {
    drain(stream_);  // some copies may be under way, out of memory that goes to the next use
    throw;
  }
}

}  // namespace accdp
