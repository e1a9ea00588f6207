#pragma once
#include <cstddef>
#include <string>

#include "base/types.hpp"

namespace accdp::zstd {

/// How frames are made; how they are read does not depend on it.
enum class Effort {
  kHuffman,  ///< hardly looks for repetitions; every literal through the Huffman coder
  kFast,     ///< level 1
};

/// Why libzstd cannot be used in this process, with what to do about it; empty where it can.
const std::string& why_not();

/// Writes one frame to `out`; returns its bytes, or 0 where it does not fit. Needs why_not() to be empty, as does
/// decompress().
std::size_t compress(Effort effort, ConstBytes in, Bytes out);

/// Fills all of `out` from exactly one frame; false where `in` is anything else.
bool decompress(ConstBytes in, Bytes out);

}  // namespace accdp::zstd
