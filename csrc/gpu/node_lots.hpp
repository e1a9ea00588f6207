#pragma once
#include <vector>

#include "coll/device_tensors.hpp"
#include "gpu/pool.hpp"

namespace accdp {

// A message in device memory of which each rank of a node speaks for some lots, for all ranks at once; work is on the
// pool's stream. Cost for k ranks of S bytes: ceil(S/slot) steps each; copied S per rank, then S/k reduced of k
// sources, or S/k and then S*(k-1)/k copied.

/// Every rank's own lots become the sums over the node, in order of ranks.
void reduce_lots(Context& context, Pool& pool, Bytes data, const std::vector<DeviceTensors::Lot>& lots,
                 const Reduction& how);
/// Every rank gets the lots of the others.
void share_lots(Context& context, Pool& pool, Bytes data, const std::vector<DeviceTensors::Lot>& lots);

}  // namespace accdp
