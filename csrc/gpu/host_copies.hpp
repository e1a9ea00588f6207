#pragma once
#include <functional>
#include <memory>

#include "coll/device_route.hpp"
#include "gpu/codec_copies.hpp"
#include "gpu/host_room.hpp"

namespace accdp {

/// All copies lie in one room. Of copies that are not pinned nothing is taken from the system but what is fetched or
/// written in the host: what only the device encodes and decodes has no more than addresses there. `own`: the stream,
/// if it is nobody else's; then deliver() waits for it.
class RoomCopies final : public HostCopies {
 public:
  /// What is asked of the group's path.
  struct Path {
    CodecCopies::NodePool node_pool;
    std::function<bool()> settle;  ///< DeviceRoute::settle(), after a failure
  };
  RoomCopies(std::shared_ptr<Group> group, std::shared_ptr<SpareWorkshop> workshop, Path path, int device,
             cudaStream_t stream, Stream own, std::vector<DeviceBlock> blocks, DeviceRoute::Owners owners);
  RoomCopies(const RoomCopies&) = delete;
  ~RoomCopies() override;

  const std::vector<Bytes>& blocks() const override { return copies_; }
  void deliver() override;
  DeviceTensors& on_device() override;

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<SpareWorkshop> workshop_;
  Path path_;
  DeviceRoute::Owners owners_;
  bool is_delivered_ = false;
  int device_;
  Stream own_;
  cudaStream_t stream_;
  std::vector<DeviceBlock> blocks_;
  std::vector<Bytes> copies_;
  HostRoom room_;
  std::unique_ptr<CodecCopies> on_device_;  // last: it works on the memory above
};

}  // namespace accdp
