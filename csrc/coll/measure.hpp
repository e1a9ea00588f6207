#pragma once
#include "coll/context.hpp"
#include "coll/cost.hpp"

namespace accdp {

/// Alpha and beta of this group's nodes and links, as cost.hpp wants them: of each the worst of all ranks, so that it
/// is the same on all. Takes some milliseconds on a node and, over nodes, 3.5 MiB on each link. What cannot be measured
/// (steps of a rank alone, links of one node) keeps the value it has.
Machine measure_machine(Context& context);

/// Lets all ranks of several nodes know their link, once in a group's life: operations that choose by it need not have
/// been preceded by broadcasts, which measure it in passing. Costs 3.5 MiB on each link.
void get_to_know_link(Context& context);

}  // namespace accdp
