// Ranks, nodes and leaders: some by hand, and thousands of shapes against the definitions.
#include <algorithm>
#include <random>

#include "base/error.hpp"
#include "check.hpp"
#include "coll/topology.hpp"

using namespace accdp;

void by_hand() {
  const Topology topology(3, {0, 1, 0, 1, 2});
  CHECK(topology.size() == 5 && topology.nodes() == 3 && topology.node() == 1);
  CHECK((topology.neighbours() == std::vector<int>{1, 3}));
  CHECK(topology.local_rank() == 1 && topology.local_of(2) == 1 && topology.local_of(4) == 0);
  CHECK(topology.is_near(1) && !topology.is_near(0));
  CHECK(topology.leader(1) == 1 && topology.leader(1, 3) == 3 && topology.leader(1, 4) == 1);
  CHECK(!topology.is_leader());
}

void refused() {
  CHECK_THROWS(Topology(0, {}), UsageError, "rank=0");
  CHECK_THROWS(Topology(2, {0, 0}), UsageError, "rank=2: expected 0 to 1");
  CHECK_THROWS(Topology(-1, {0, 0}), UsageError, "rank=-1");
  CHECK_THROWS(Topology(0, {1, 0}), UsageError, "nodes[0]=1");
  CHECK_THROWS(Topology(0, {0, 2}), UsageError, "nodes[1]=2");
  CHECK_THROWS(Topology(0, {0, -1}), UsageError, "nodes[1]=-1");
}

void check_shape(const std::vector<int>& nodes, int rank) {
  const Topology t(rank, nodes);
  const int size = static_cast<int>(nodes.size());
  CHECK(t.rank() == rank && t.size() == size && t.node() == nodes[rank]);
  CHECK(t.nodes() == 1 + *std::max_element(nodes.begin(), nodes.end()));
  CHECK(t.neighbours() == t.members(t.node()));
  CHECK(t.local_size() == std::count(nodes.begin(), nodes.end(), nodes[rank]));
  CHECK(t.neighbours()[t.local_rank()] == rank);
  int members = 0;
  for (int node = 0; node < t.nodes(); ++node) {
    CHECK(std::is_sorted(t.members(node).begin(), t.members(node).end()));
    CHECK(t.leader(node) == t.members(node).front());
    for (int member : t.members(node)) CHECK(nodes[member] == node);
    members += static_cast<int>(t.members(node).size());
  }
  CHECK(members == size);
  CHECK(t.is_leader() == (t.leader(t.node()) == rank));
  for (int other = 0; other < size; ++other) {
    CHECK(t.node_of(other) == nodes[other]);
    CHECK(t.is_near(other) == (nodes[other] == nodes[rank]));
    CHECK(t.local_of(other) == std::count(nodes.begin(), nodes.begin() + other, nodes[other]));
    CHECK(t.members(nodes[other])[t.local_of(other)] == other);
    // With a root, each node still has exactly one leader, and root leads its own.
    for (int node = 0; node < t.nodes(); ++node)
      CHECK(t.leader(node, other) == (node == nodes[other] ? other : t.leader(node)));
  }
}

int main() {
  by_hand();
  refused();
  std::mt19937 random(1);
  for (int shape = 0; shape < 4000; ++shape) {
    const int size = 1 + static_cast<int>(random() % (shape % 50 ? 12 : 200));
    std::vector<int> nodes;
    int used = 0;
    for (int rank = 0; rank < size; ++rank) {  // any earlier node or the next new one
      nodes.push_back(static_cast<int>(random() % (used + 1)));
      used = std::max(used, nodes.back() + 1);
    }
    check_shape(nodes, static_cast<int>(random() % size));
  }
}
