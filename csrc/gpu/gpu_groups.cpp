#include "gpu/gpu_groups.hpp"

#include <algorithm>
#include <utility>

#include "coll/topology.hpp"

namespace accdp {

GpuGroups::GpuGroups(int me, std::vector<int> group_of, int lanes) : me_(me), group_of_(std::move(group_of)) {
  const int ranks = static_cast<int>(group_of_.size());
  for (int rank = 0; rank < ranks; ++rank) {
    if (group_of_[rank] == count()) members_.emplace_back();
    members_[group_of_[rank]].push_back(rank);
  }
  for (int lane = 0; lane < lanes; ++lane) {
    owners_.push_back(Topology::lane_owner(lane, lanes, ranks));
    if (owners_.back() == me) own_lane_ = lane;
  }
  lanes_of_.resize(ranks);
  agents_.assign(count(), owners_);
  for (int lane = 0; lane < lanes; ++lane) lanes_of_[owners_[lane]].push_back(lane);
  for (int group = 0; group < count(); ++group)
    for (int lane = 0; lane < lanes; ++lane) {
      if (group_of_[owners_[lane]] == group) continue;
      agents_[group][lane] = *std::min_element(members_[group].begin(), members_[group].end(),
                                               [&](int a, int b) { return lanes_of_[a].size() < lanes_of_[b].size(); });
      lanes_of_[agents_[group][lane]].push_back(lane);
    }
}

int GpuGroups::largest() const {
  std::size_t most = 0;
  for (const std::vector<int>& members : members_) most = std::max(most, members.size());
  return static_cast<int>(most);
}

std::size_t GpuGroups::most_lanes() const {
  std::size_t most = 0;
  for (const std::vector<int>& lanes : lanes_of_) most = std::max(most, lanes.size());
  return most;
}

std::vector<int> group_by_reach(const std::vector<int>& gpu_of, const std::vector<std::uint32_t>& reached) {
  const int ranks = static_cast<int>(gpu_of.size());
  const auto reach_each_other = [&](int a, int b) { return (reached[a] >> b & 1) && (reached[b] >> a & 1); };
  // Whether all ranks that `first` says and all that `second` says reach each other.
  const auto all_reach = [&](auto first, auto second) {
    for (int a = 0; a < ranks; ++a)
      for (int b = 0; b < ranks; ++b)
        if (first(a) && second(b) && !reach_each_other(a, b)) return false;
    return true;
  };
  std::vector<int> group_of(ranks, -1);
  for (int rank = 0, groups = 0; rank < ranks; ++rank) {
    if (group_of[rank] >= 0) continue;
    const auto is_here = [&](int other) { return gpu_of[other] == gpu_of[rank]; };
    if (!all_reach(is_here, is_here)) return {};
    int group = 0;
    while (group < groups && !all_reach(is_here, [&](int other) { return group_of[other] == group; })) ++group;
    groups = std::max(groups, group + 1);
    for (int other = rank; other < ranks; ++other)
      if (is_here(other)) group_of[other] = group;
  }
  return group_of;
}

}  // namespace accdp
