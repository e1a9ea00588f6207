#include "gpu/gpu_groups.hpp"

#include <algorithm>
#include <utility>

namespace accdp {

GpuGroups::GpuGroups(int me, std::vector<int> group_of) : me_(me), group_of_(std::move(group_of)) {
  for (int rank = 0; rank < static_cast<int>(group_of_.size()); ++rank) {
    if (group_of_[rank] == count()) members_.emplace_back();
    std::vector<int>& members = members_[group_of_[rank]];
    place_in_group_.push_back(static_cast<int>(members.size()));
    members.push_back(rank);
  }
  lanes_of_.resize(group_of_.size());
  for (int lane = 0; lane < static_cast<int>(group_of_.size()); ++lane)
    for (int group = 0; group < count(); ++group) lanes_of_[agent(group, lane)].push_back(lane);
}

int GpuGroups::largest() const {
  std::size_t most = 0;
  for (const std::vector<int>& members : members_) most = std::max(most, members.size());
  return static_cast<int>(most);
}

int GpuGroups::agent(int group, int lane) const {
  if (group_of_[lane] == group) return lane;
  const std::vector<int>& members = members_[group];
  return members[place_in_group_[lane] % members.size()];
}

}  // namespace accdp
