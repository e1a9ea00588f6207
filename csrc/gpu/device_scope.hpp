#pragma once
#include "coll/group.hpp"
#include "device/cuda.hpp"
#include "gpu/endless_wait.hpp"

namespace accdp {

/// What a device does for a group may be behind the work of its other ranks.
inline EndlessWait wait_for_ranks(const Group& group) {
  return EndlessWait([&group] { return group.may_miss_ranks(); });
}

/// In a scope: a device is current, and waits for it end with an error where a rank of the group is gone, or the group
/// has failed, and they may have no end.
class DeviceScope {
 public:
  DeviceScope(Group& group, int device)
      : guard_(device), watched_([&group, wait = wait_for_ranks(group)]() mutable {
          check_interrupt();
          if (wait.is_endless()) group.throw_if_lost("work of a device");
        }) {}
  DeviceScope(const DeviceScope&) = delete;

 private:
  const DeviceGuard guard_;
  const WatchedWaits watched_;
};

}  // namespace accdp
