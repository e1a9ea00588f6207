#include "gpu/host_copies.hpp"

#include <optional>
#include <utility>

#include "base/keep.hpp"
#include "base/rounding.hpp"
#include "gpu/device_scope.hpp"

namespace accdp {
namespace {

/// Copies do not touch: spans of two of them never look like one.
std::size_t room_for(std::size_t bytes) { return device_aligned(bytes + 1); }

}  // namespace

RoomCopies::RoomCopies(std::shared_ptr<Group> group, std::shared_ptr<SpareWorkshop> workshop, Path path, int device,
                       cudaStream_t stream, Stream own, std::vector<DeviceBlock> blocks, DeviceRoute::Owners owners)
    : group_(std::move(group)),
      workshop_(std::move(workshop)),
      path_(std::move(path)),
      owners_(std::move(owners)),
      device_(device),
      own_(std::move(own)),
      stream_(stream),
      blocks_(std::move(blocks)) {
  const DeviceScope scope(*group_, device_);
  std::size_t bytes = 0;
  for (const DeviceBlock& block : blocks_) bytes += room_for(block.data.size());
  room_ = HostRoom(bytes);
  std::vector<Transfer> transfers;
  std::byte* at = room_.data();
  for (const DeviceBlock& block : blocks_) {
    copies_.emplace_back(at, block.data.size());
    at += room_for(block.data.size());
    if (block.is_read) transfers.push_back({copies_.back().data(), block.data.data(), block.data.size()});
  }
  room_.fetch(transfers, stream_);
  on_device_ =
      std::make_unique<CodecCopies>(*group_, workshop_, path_.node_pool, device_, stream_, blocks_, copies_, room_);
}

RoomCopies::~RoomCopies() {
  const std::optional<DeviceGuard> guard = guard_if_possible(device_);  // the thread may be one that has used none
  const auto is_idle = [&] { return (!own_ || is_done(own_.get())) && on_device_->is_idle(); };
  const bool is_settled = outlast_work(stream_, wait_for_ranks(*group_), is_idle);
  if (!is_delivered_ && owners_ && !(path_.settle() && is_settled)) keep_for_ever(std::move(owners_));
  on_device_.reset();
  if (group_->has_wire() && group_->may_miss_ranks()) std::move(room_).leave_to_wire();
  room_ = {};
  workshop_.reset();  // may be the last owner of what CUDA made
  own_ = {};
}

DeviceTensors& RoomCopies::on_device() {
  const DeviceGuard guard(device_);
  try {
    workshop_->load_kernels(device_);
  } catch (const CudaError& error) {
    constexpr const char* kWhat = "its device cannot be used for compression";
    group_->abort(std::string(kWhat) + ": " + error.what());  // the others are about to wait for this rank
    std::rethrow_exception(named(std::current_exception(), group_->here(), kWhat));
  }
  return *on_device_;
}

void RoomCopies::deliver() {
  on_device_->deliver();
  if (own_) {
    const DeviceScope scope(*group_, device_);
    synchronize(stream_);
  }
  is_delivered_ = true;
}

}  // namespace accdp
