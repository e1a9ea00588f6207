#pragma once
#include <cstddef>

#include "base/types.hpp"

namespace accdp {

/// How elements of a datatype are taken apart into planes: plane 0 holds the most significant byte of every word,
/// the last plane the least significant one.
struct PlaneShape {
  std::size_t planes;      ///< bytes of one word
  bool is_exponent_first;  ///< words are rotated left by one bit before, so that plane 0 is the exponent alone
};

/// float32 and bfloat16 have 8 exponent bits behind the sign: rotated, they fill plane 0, and the sign joins the
/// mantissa, which is noise anyway. Complex numbers are pairs of words. Everything else is taken as it is; float16
/// and float64 too, where no rotation makes a whole byte of the exponent.
PlaneShape plane_shape(Datatype type) noexcept;

/// Plane p of `in` goes to planes + p * count, where count = in.size() / shape.planes. `in` has any alignment.
void split_planes(PlaneShape shape, ConstBytes in, std::byte* planes);

/// The reverse: `planes[p]` points to plane p.
void merge_planes(PlaneShape shape, const std::byte* const* planes, Bytes out);

}  // namespace accdp
