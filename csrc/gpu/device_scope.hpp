#pragma once
#include <string>

#include "base/error.hpp"
#include "coll/group.hpp"
#include "device/cuda.hpp"
#include "gpu/endless_wait.hpp"
#include "gpu/pool.hpp"

namespace accdp {

/// What a device does for a group may be behind the work of its other ranks, and of those of other groups.
inline EndlessWait wait_for_ranks(const Group& group) {
  return EndlessWait([&group] { return group.may_miss_ranks() || !Pool::lost().empty(); });
}

/// In a scope: a device is current, and waits for it end with an error where a rank of the group, or of another whose
/// work they are behind, is gone, or the group has failed, and they may have no end. what() says for the text what they
/// are part of.
class DeviceScope {
 public:
  template <class What>
  DeviceScope(Group& group, int device, What what)
      : guard_(device), watched_([&group, what, wait = wait_for_ranks(group)]() mutable {
          check_interrupt();
          if (!wait.is_endless()) return;
          group.throw_if_lost(what());
          if (const std::string lost = Pool::lost(); !lost.empty())
            throw PeerDied(std::string(what()) + " waits for a device that waits for " + lost);
        }) {}
  DeviceScope(Group& group, int device) : DeviceScope(group, device, [] { return "work of a device"; }) {}
  DeviceScope(const DeviceScope&) = delete;

 private:
  const DeviceGuard guard_;
  const WatchedWaits watched_;
};

}  // namespace accdp
