// Ranks, nodes and leaders.
#include "base/error.hpp"
#include "check.hpp"
#include "coll/topology.hpp"

using namespace accdp;

int main() {
  const Topology topology(3, {0, 1, 0, 1, 2});
  CHECK(topology.size() == 5 && topology.nodes() == 3 && topology.node() == 1);
  CHECK((topology.neighbours() == std::vector<int>{1, 3}));
  CHECK(topology.local_rank() == 1 && topology.local_of(2) == 1 && topology.local_of(4) == 0);
  CHECK(topology.is_near(1) && !topology.is_near(0));
  CHECK(topology.leader(1) == 1 && topology.leader(1, 3) == 3 && topology.leader(1, 4) == 1);
  CHECK(!topology.is_leader() && topology.is_leader(3));

  CHECK_THROWS(Topology(0, {}), UsageError, "rank=0");
  CHECK_THROWS(Topology(2, {0, 0}), UsageError, "rank=2: expected 0 to 1");
  CHECK_THROWS(Topology(-1, {0, 0}), UsageError, "rank=-1");
  CHECK_THROWS(Topology(0, {1, 0}), UsageError, "nodes[0]=1");
  CHECK_THROWS(Topology(0, {0, -1}), UsageError, "nodes[1]=-1");
}
