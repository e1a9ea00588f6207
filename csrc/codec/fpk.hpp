#pragma once
#include <cstddef>

#include "base/types.hpp"
#include "codec/block_ops.hpp"

namespace accdp {

// fpk: lossless and fast. Blocks of 512 elements become bit planes of few bits for the exponents of floats, or for
// whole integers, and planes of zeros are left out (fpk_blocks.hpp; the frame around them: block_stream.hpp).

bool fpk_takes(Datatype type) noexcept;

/// As CodecRow's; `ops` choose the loops and do not change the bytes.
std::size_t fpk_encode(Datatype type, ConstBytes in, Bytes out, const BlockOps& ops = block_ops());
void fpk_decode(Datatype type, ConstBytes in, Bytes out, const BlockOps& ops = block_ops());

}  // namespace accdp
