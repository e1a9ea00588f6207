#pragma once
#include <cstddef>

#include "base/types.hpp"
#include "codec/nvcomp_api.hpp"

namespace accdp {

/// What lossless streams are made of. Floats are taken for unsigned words, the only ones that make them smaller;
/// complex numbers are pairs of them.
nvcomp::Word bitcomp_word(Datatype type);

/// Throws CodecError where the head of a stream of the codec bitcomp does not say that it is one for `raw_bytes` bytes
/// of this datatype. What is behind the head cannot be checked.
void check_bitcomp_head(Datatype type, ConstBytes in, std::size_t raw_bytes);

}  // namespace accdp
