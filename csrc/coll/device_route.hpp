#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coll/collectives.hpp"
#include "coll/device_tensors.hpp"

namespace accdp {

/// Device memory that is worked on in the host.
struct DeviceBlock {
  Bytes data;
  bool is_read, is_written;
  bool is_read_later = false;  ///< instead of is_read: only what DeviceTensors::fetch() asks for
};

/// Host copies of blocks of device memory, for what only works there.
class HostCopies {
 public:
  virtual ~HostCopies() = default;
  virtual const std::vector<Bytes>& blocks() const = 0;  ///< in the order given
  /// Those that are written go back, in the order of the stream.
  virtual void deliver() = 0;
  /// For those that encode and decode on the device; what they decoded there is not delivered.
  virtual DeviceTensors& on_device() = 0;
};

/// The way of one group's calls to the memory of a device, for those who know no CUDA (gpu/device_collectives.hpp).
class DeviceRoute {
 public:
  /// Of memory that a call is given: let go when the call has ended and, where it failed, no device works on it any
  /// more; never, where that cannot be expected.
  using Owners = std::shared_ptr<void>;

  virtual ~DeviceRoute() = default;
  /// Throws UsageError where the group takes no call from that stream: it is being captured into a graph, or the
  /// group's first call was on another device.
  virtual void admit(int device, std::uintptr_t stream) = 0;
  /// For one call. Its work begins after what `stream` holds when it runs, and what follows there begins after it.
  virtual std::unique_ptr<Collectives> collectives(int device, std::uintptr_t stream) = 0;
  /// Waits until the blocks that are read have come. The device memory is used until deliver()'s work is done. Where it
  /// fails, the group has: the others are about to wait for this rank.
  virtual std::unique_ptr<HostCopies> fetch(int device, std::uintptr_t stream, const std::vector<DeviceBlock>& blocks,
                                            Owners owners = {}) = 0;
  /// Before the wire gets memory of the device (PostOffice::takes_device_memory): waits until what `stream` holds is
  /// done. Throws as admit() does.
  virtual void await(int device, std::uintptr_t stream) = 0;
  /// Waits until the device has done what calls handed to it. False where that cannot be expected any more, because a
  /// call failed, here where that is what the caller knows, or a rank that it waits for is gone: then what they used
  /// may never be used again.
  virtual bool settle(bool has_failed = false) noexcept = 0;
  virtual std::string describe() const = 0;
  /// Asks on a device what a capture of another thread's into a graph would forbid and be ended by, whether an event
  /// has come to pass for one. Of use beyond the end of this.
  using Asker = bool (*)(int device, const std::function<bool()>& question);
  virtual Asker asker() const noexcept = 0;
};

}  // namespace accdp
