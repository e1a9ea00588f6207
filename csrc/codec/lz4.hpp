#pragma once
#include "base/types.hpp"

namespace accdp {

/// Whether the codec lz4 takes elements apart into byte planes before it encodes them.
bool lz4_splits(Datatype type) noexcept;

}  // namespace accdp
