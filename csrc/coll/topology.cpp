#include "coll/topology.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace accdp {

Topology::Topology(int rank, const std::vector<int>& node_of) : rank_(rank), node_of_(node_of) {
  if (node_of.empty() || rank < 0 || rank >= size())
    throw UsageError("rank=" + std::to_string(rank) + ": expected 0 to " + std::to_string(size() - 1));
  for (int r = 0; r < size(); ++r) {
    int node = node_of[r];
    if (node < 0 || node > nodes())
      throw UsageError("nodes[" + std::to_string(r) + "]=" + std::to_string(node) +
                       ": expected node numbers from 0 in order of first appearance");
    if (node == nodes()) members_.emplace_back();
    local_of_.push_back(static_cast<int>(members_[node].size()));
    members_[node].push_back(r);
  }
}

int Topology::fewest_local() const {
  std::size_t fewest = members_.front().size();
  for (const std::vector<int>& ranks : members_) fewest = std::min(fewest, ranks.size());
  return static_cast<int>(fewest);
}

}  // namespace accdp
