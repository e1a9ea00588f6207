#pragma once
#include <cstdint>
#include <vector>

namespace accdp {

/// Which ranks of a node share device memory, and who works for whom where they are in several groups. A lane is the
/// part of a segment that one rank of the node, its owner, speaks for with other groups and nodes. In each group one
/// rank works for a lane: its owner where that is in the group, else whoever of the group works for the fewest. Ranks
/// are the node's. Pure.
class GpuGroups {
 public:
  GpuGroups() = default;
  /// group_of[r]: the group of rank r, numbered from 0 in order of first appearance. lanes: at most one per rank;
  /// Topology says whose they are.
  GpuGroups(int me, std::vector<int> group_of, int lanes);

  int count() const { return static_cast<int>(members_.size()); }
  int of(int rank) const { return group_of_[rank]; }
  int mine() const { return group_of_[me_]; }
  const std::vector<int>& members(int group) const { return members_[group]; }
  const std::vector<int>& mates() const { return members_[mine()]; }  ///< this rank's group, this rank too
  int largest() const;
  int lanes() const { return static_cast<int>(owners_.size()); }
  int owner(int lane) const { return owners_[lane]; }
  /// The lane that this rank owns; -1: none.
  int own_lane() const { return own_lane_; }
  /// The rank of `group` that works for the lane.
  int agent(int group, int lane) const { return agents_[group][lane]; }
  /// The lanes that `rank` works for in its group.
  const std::vector<int>& lanes_of(int rank) const { return lanes_of_[rank]; }
  /// How many that is at most.
  std::size_t most_lanes() const;

 private:
  int me_ = 0, own_lane_ = -1;
  std::vector<int> group_of_, owners_;
  std::vector<std::vector<int>> members_, agents_, lanes_of_;
};

/// The groups of ranks that share device memory: those of a GPU, or of several GPUs that reach each other. gpu_of[r]:
/// the GPU of rank r; reached[r]: a bit for every rank whose memory rank r has opened, itself too. A GPU joins the
/// first group of which it reaches all others, and they it. Empty where ranks of one GPU do not reach each other. Pure.
std::vector<int> group_by_reach(const std::vector<int>& gpu_of, const std::vector<std::uint32_t>& reached);

}  // namespace accdp
