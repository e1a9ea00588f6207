#pragma once
#include <cstddef>
#include <span>

#include "device/cuda.hpp"

namespace accdp {

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
  bool is_read_soon;  ///< the target, which may then stay in the device's cache; else the source was there
};

/// Copies on one device, in the order of the stream, of which none writes what another reads or writes. Several are one
/// kernel's, since to hand over an operation takes the host longer than a short copy takes the device; what does not
/// lie at multiples of 16 bytes, and a single one, is left to the driver. Nothing where source and target are the same.
void copy_async(std::span<const Copy> copies, cudaStream_t stream);

/// load_kernel() of what copy_async() launches.
void load_copies() noexcept;

}  // namespace accdp
