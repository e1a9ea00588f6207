#pragma once
#include <vector>

namespace accdp {

/// Which ranks of a node share device memory, and who works for whom where they are in several groups. The lane of a
/// rank is the part of a segment that this rank speaks for with other groups and nodes. In each group one rank works
/// for a lane: its own rank where that is in the group, else one of the group's, in turn. Ranks are the node's. Pure.
class GpuGroups {
 public:
  GpuGroups() = default;
  /// group_of[r]: the group of rank r, numbered from 0 in order of first appearance.
  GpuGroups(int me, std::vector<int> group_of);

  int count() const { return static_cast<int>(members_.size()); }
  int of(int rank) const { return group_of_[rank]; }
  int mine() const { return group_of_[me_]; }
  const std::vector<int>& mates() const { return members_[mine()]; }  ///< this rank's group, this rank too
  int largest() const;
  /// The rank of `group` that works for the lane.
  int agent(int group, int lane) const;
  /// The lanes that `rank` works for in its group.
  const std::vector<int>& lanes_of(int rank) const { return lanes_of_[rank]; }

 private:
  int me_ = 0;
  std::vector<int> group_of_, place_in_group_;
  std::vector<std::vector<int>> members_, lanes_of_;
};

}  // namespace accdp
