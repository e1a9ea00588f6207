#pragma once
#include <string>
#include <vector>

namespace accdp {

/// Who is in the group and who shares a node with whom. Pure arithmetic on ranks.
class Topology {
 public:
  /// node_of[r]: node of rank r, numbered from 0 in order of first appearance.
  Topology(int rank, const std::vector<int>& node_of);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(node_of_.size()); }
  int nodes() const { return static_cast<int>(members_.size()); }
  int node() const { return node_of_[rank_]; }
  int node_of(int rank) const { return node_of_[rank]; }
  const std::vector<int>& members(int node) const { return members_[node]; }
  const std::vector<int>& neighbours() const { return members_[node()]; }  ///< this node's ranks, this one too
  int local_size() const { return static_cast<int>(neighbours().size()); }
  int local_rank() const { return local_of_[rank_]; }
  int local_of(int rank) const { return local_of_[rank]; }  ///< index of `rank` among its node's ranks
  bool is_near(int rank) const { return node_of_[rank] == node(); }

  /// The rank that speaks for a node: `root` on root's own node, the lowest rank elsewhere.
  int leader(int node, int root = -1) const {
    return root >= 0 && node_of_[root] == node ? root : members_[node].front();
  }
  bool is_leader() const { return leader(node()) == rank_; }

  /// Where ranks of every node speak for parts of a message ("lanes"), each lane has one rank on each node: spread
  /// over the node's ranks, all of them where there are as many lanes.
  static constexpr int lane_owner(int lane, int lanes, int ranks) { return lane * ranks / lanes; }
  int speaker(int node, int lane, int lanes) const {
    return members_[node][lane_owner(lane, lanes, static_cast<int>(members_[node].size()))];
  }
  int fewest_local() const;  ///< ranks on the node that has the fewest

 private:
  int rank_;
  std::vector<int> node_of_;
  std::vector<int> local_of_;
  std::vector<std::vector<int>> members_;
};

}  // namespace accdp
