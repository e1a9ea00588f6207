// The kernels against the host loops that they must equal: every type, operation and number of sources, any alignment.
#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "base/float16.hpp"
#include "check.hpp"
#include "cudasim.hpp"
#include "device/cuda.hpp"
#include "device/cuda_reduce.hpp"

// Those for every processor, whose loops are inline.
#define ACCDP_ISA portable
#include "device/reduce_kernels.hpp"

using namespace accdp;

constexpr Datatype kTypes[] = {Datatype::kBool,   Datatype::kU8,    Datatype::kI8,  Datatype::kU16, Datatype::kI16,
                               Datatype::kU32,    Datatype::kI32,   Datatype::kU64, Datatype::kI64, Datatype::kF16,
                               Datatype::kBF16,   Datatype::kF32,   Datatype::kF64, Datatype::kC64, Datatype::kC128,
                               Datatype::kF8E4M3, Datatype::kF8E5M2};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kProd, ReduceOp::kMin,
                             ReduceOp::kMax, ReduceOp::kBand, ReduceOp::kBor,  ReduceOp::kBxor};

bool is_defined(Datatype type, ReduceOp op) {
  try {
    check_reducible(type, op);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

/// Random bits, but no NaN of a complex number and no huge one: std::complex recovers infinities from products.
void fill(std::byte* data, std::size_t bytes, Datatype type, std::mt19937& random) {
  std::uniform_real_distribution<double> number(-8, 8);
  auto put = [&](auto sample) {
    for (std::size_t at = 0; at + sizeof sample <= bytes; at += sizeof sample) {
      sample = static_cast<decltype(sample)>(number(random));
      std::memcpy(data + at, &sample, sizeof sample);
    }
  };
  if (type == Datatype::kC64) return put(float{});
  if (type == Datatype::kC128) return put(double{});
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<std::byte>(type == Datatype::kBool ? random() % 2 : random());
}

/// Equal bits, or both a NaN: whose payload survives is not promised.
bool same(Datatype type, const std::byte* a, const std::byte* b, std::size_t count) {
  const std::size_t width = element_bytes(type);
  auto is_nan = [&](const std::byte* at) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, at, width);
    if (type == Datatype::kF8E4M3) return (bits & 0x7f) == 0x7f;
    if (type == Datatype::kF8E5M2) return (bits & 0x7f) > 0x7c;
    if (type == Datatype::kF16) return (bits & 0x7fff) > 0x7c00;
    if (type == Datatype::kBF16) return (bits & 0x7fff) > 0x7f80;
    if (type == Datatype::kF32) return (bits & 0x7fffffff) > 0x7f800000;
    return type == Datatype::kF64 && (bits & ~(1ull << 63)) > 0x7ff0000000000000;
  };
  for (std::size_t i = 0; i < count; ++i, a += width, b += width)
    if (std::memcmp(a, b, width) != 0 && !(is_nan(a) && is_nan(b))) return false;
  return true;
}

constexpr int kResult = 30, kAlso = 31;

/// odd: bit r says that source r does not lie at a multiple of 16 bytes, kResult and kAlso that these do not.
void check(Datatype type, ReduceOp op, std::size_t count, int ranks, std::uint32_t odd, cudaStream_t stream) {
  std::mt19937 random(static_cast<unsigned>(count + ranks));
  const std::size_t width = element_bytes(type), bytes = count * width, room = bytes + width + cudasim::kGuard;
  const auto place = [&](const DeviceBuffer& buffer, int bit) { return buffer.data() + (odd >> bit & 1) * width; };
  std::vector<DeviceBuffer> buffers;
  std::vector<const void*> sources;
  for (int rank = 0; rank < ranks; ++rank) {
    buffers.emplace_back(room);
    sources.push_back(place(buffers.back(), rank));
    fill(place(buffers.back(), rank), bytes, type, random);
  }
  const Reduction how{type, op, ranks};
  std::vector<std::byte> wanted(bytes + 1);
  portable::kernel(type, op)(wanted.data(), sources, count, op == ReduceOp::kAvg ? ranks : 0);
  const DeviceBuffer result_room(room), also_room(room);
  std::byte *const result = place(result_room, kResult), *const also = place(also_room, kAlso);
  const std::vector<std::byte> behind(result + bytes, result_room.data() + room);
  reduce_async(result, also, sources, count, how, stream);
  ACCDP_CUDA(cudaStreamSynchronize(stream));
  CHECK(same(type, result, wanted.data(), count) && same(type, also, wanted.data(), count));
  CHECK(std::equal(behind.begin(), behind.end(), result + bytes));           // nothing beyond the end
  reduce_async(place(buffers[0], 0), nullptr, sources, count, how, stream);  // in place
  ACCDP_CUDA(cudaStreamSynchronize(stream));
  CHECK(same(type, place(buffers[0], 0), wanted.data(), count));
}

int main() {
  const Stream stream = make_stream();
  for (Datatype type : kTypes)
    for (ReduceOp op : kOps) {
      if (!is_defined(type, op)) continue;
      for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{1033}})
        for (int ranks : {1, 2, 5, 16}) {
          for (std::uint32_t odd : {0u, ~0u, 0x12u | 1u << kAlso, 1u << kResult})
            check(type, op, count, ranks, odd, stream.get());
        }
    }
  const DeviceBuffer buffer(64);
  const std::vector<const void*> many(kMostSources + 1, buffer.data());
  CHECK_THROWS(reduce_async(buffer.data(), nullptr, many, 1, {Datatype::kF32, ReduceOp::kSum}, stream.get()),
               UsageError, "33 sources: expected 1 to 32");
  CHECK_THROWS(
      reduce_async(buffer.data(), nullptr, {many.data(), 1}, 1, {Datatype::kBytes, ReduceOp::kSum}, stream.get()),
      UsageError, "not defined for bytes");
  cudasim::fail("cudaLaunchKernelExC", cudaErrorLaunchFailure);
  CHECK_THROWS(
      reduce_async(buffer.data(), nullptr, {many.data(), 1}, 1, {Datatype::kF32, ReduceOp::kSum}, stream.get()),
      CudaError, "cudaErrorLaunchFailure, device/cuda_reduce.cu:");
}
