#pragma once
// How kernels read memory of any alignment, and floats.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "base/types.hpp"
#include "codec/cuda_qpk.hpp"

namespace accdp::device_codec {

constexpr std::size_t kWide = 16;  // bytes of an access where all addresses are multiples of it

template <class T>
struct alignas(kWide) Lanes {
  T lane[kWide / sizeof(T)];
};

// How floats are held in memory (T) and what is computed with (Wide).
template <class Number>
struct Single : Number {
  using Wide = float;
};
struct Double {
  using T = double;
  using Wide = double;
  static __device__ double load(double value) { return value; }
};

/// with(kind) of floats of 16 bits or more. what: is done with them, for the error of others.
template <class With>
void with_float(Datatype type, const char* what, With&& with) {
  switch (type) {
    case Datatype::kF16: return with(Single<NumberF16>{});
    case Datatype::kBF16: return with(Single<NumberBF16>{});
    case Datatype::kF32: return with(Single<NumberF32>{});
    case Datatype::kF64: return with(Double{});
    default: throw UsageError(std::string(what) + " of " + name_of(type) + ": expected a float of 16 bits or more");
  }
}

}  // namespace accdp::device_codec
