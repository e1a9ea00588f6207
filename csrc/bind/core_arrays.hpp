#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

#include "base/types.hpp"

namespace accdp::bind {

/// An array that needs no explaining: contiguous, in host memory, of numbers in this machine's byte order.
struct PlainArray {
  Bytes data;
  Datatype type;
  std::int64_t rows;  ///< first dimension; -1 where there is none

  std::size_t count() const { return data.size() / element_bytes(type); }
};

/// Reads a NumPy array, torch.Tensor or torch.nn.Parameter in a fraction of a microsecond. Nothing for whatever else it
/// is, and where it has to be writable and is not: accdp_comm/buffers.py takes those, or says why not.
std::optional<PlainArray> plain_array(pybind11::handle x, bool writable);

}  // namespace accdp::bind
