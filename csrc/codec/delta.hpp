#pragma once
#include "base/types.hpp"

namespace accdp {

// A tensor that changed little since a version the receiver has: differences of integers, small ones where values are
// near each other. Floats are ordered integers here, so that any bits come back as they were.

/// What the differences are sent as: the unsigned integer of the same width; of the parts of complex numbers.
Datatype delta_type(Datatype type) noexcept;

/// All spans have the same size. `out` may be one of the inputs, but must not overlap them otherwise.
void delta_encode(Datatype type, ConstBytes in, ConstBytes reference, Bytes out);
void delta_decode(Datatype type, ConstBytes delta, ConstBytes reference, Bytes out);

}  // namespace accdp
