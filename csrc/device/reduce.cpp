#include "device/reduce.hpp"

#include <complex>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "base/error.hpp"
#include "base/float16.hpp"
#include "base/processor.hpp"

#define ACCDP_ISA portable
#include "device/reduce_kernels.hpp"

namespace accdp {

using portable::Kernel;

#if defined(__x86_64__)
Kernel kernel_avx2(Datatype type, ReduceOp op);
namespace {
const bool kHasAvx2 = has_avx2();
Kernel choose(Datatype type, ReduceOp op) { return kHasAvx2 ? kernel_avx2(type, op) : portable::kernel(type, op); }
}  // namespace
const char* reduce_isa() { return kHasAvx2 ? "avx2" : "x86-64"; }
#else
namespace {
Kernel choose(Datatype type, ReduceOp op) { return portable::kernel(type, op); }
}  // namespace
#if defined(__aarch64__)
const char* reduce_isa() { return "neon"; }  // every one has it, so the compiler uses it in all loops
#else
const char* reduce_isa() { return "portable"; }
#endif
#endif

bool is_reducible(Datatype type, ReduceOp op) noexcept { return portable::kernel(type, op) != nullptr; }

void check_reducible(Datatype type, ReduceOp op) {
  if (!is_reducible(type, op))
    throw UsageError(std::string("op=") + name_of(op) + " is not defined for " + name_of(type) + "; expected " +
                     (type == Datatype::kBytes  ? "a numeric datatype"
                      : type == Datatype::kBool ? "any operation but avg"
                      : is_complex(type)        ? "sum, avg or prod"
                                                : "sum, avg, prod, min or max"));
}

void reduce(void* dst, std::span<const void* const> srcs, std::size_t count, const Reduction& how) {
  choose(how.type, how.op)(dst, srcs, count, how.op == ReduceOp::kAvg ? how.divisor : 0);
}

namespace {

// Loads and stores of the reduction loops; the operation does not matter.
template <class Element>
using LoopsOf = portable::Block<Element, portable::Sum>;

/// visit(LoopsOf<the type>()).
template <class Visit>
void with_loops(Datatype type, Visit visit) {
  switch (type) {
    case Datatype::kF16: return visit(LoopsOf<portable::Half>());
    case Datatype::kF8E4M3: return visit(LoopsOf<portable::Float8E4M3>());
    case Datatype::kF8E5M2: return visit(LoopsOf<portable::Float8E5M2>());
    default: return visit(LoopsOf<portable::BFloat16>());
  }
}

}  // namespace

void widen(void* to, const void* from, std::size_t count, Datatype type) {
  with_loops(type, [&]<class Loops>(Loops) {
    Loops::load(static_cast<float*>(to), static_cast<const typename Loops::T*>(from), count);
  });
}

void narrow(void* to, const void* from, std::size_t count, Datatype type) {
  with_loops(type, [&]<class Loops>(Loops) {
    Loops::store(static_cast<typename Loops::T*>(to), static_cast<const float*>(from), count);
  });
}

}  // namespace accdp
