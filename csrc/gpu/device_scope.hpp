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
/// has failed, and they may have no end. what() says for the text what they are part of.
class DeviceScope {
 public:
  template <class What>
  DeviceScope(Group& group, int device, What what)
      : guard_(device), watched_([&group, what, wait = wait_for_ranks(group)]() mutable {
          check_interrupt();
          if (wait.is_endless()) group.throw_if_lost(what());
        }) {}
  DeviceScope(Group& group, int device) : DeviceScope(group, device, [] { return "work of a device"; }) {}
  DeviceScope(const DeviceScope&) = delete;

 private:
  const DeviceGuard guard_;
  const WatchedWaits watched_;
};

}  // namespace accdp
