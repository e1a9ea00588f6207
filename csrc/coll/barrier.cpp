// Barrier. Phases: all ranks of a node meet; their leaders exchange signatures, which no leader can
// finish before every node has met; the leader's next step releases the node.
// Cost: 1 step on one node; on several 2 steps, and ceil(log8(nodes)) small messages' ways one after the other, or two
// where leaders meet at the hub (meeting.cpp).
#include "coll/algorithms.hpp"

namespace accdp {

void barrier(Context& c) { c.meet_everywhere(); }

}  // namespace accdp
