// The kernels around the codecs against the host's loops: differences, residuals, and short pieces on their way to the
// host. All types, odd counts, any bits; at multiples of 16 bytes, where kernels take 16 at a time, and beside them.
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "codec/cuda_transforms.hpp"
#include "codec/delta.hpp"
#include "codec/residual.hpp"
#include "on_device.hpp"

using enum Datatype;

namespace {

constexpr Datatype kAll[] = {kBool, kU8,   kI8,  kU16, kI16, kU32,  kI32,    kU64,    kI64,
                             kF16,  kBF16, kF32, kF64, kC64, kC128, kF8E4M3, kF8E5M2, kBytes};
constexpr Datatype kFloats[] = {kF16, kBF16, kF32, kF64};
constexpr std::size_t kCounts[] = {0, 1, 3, 7, 15, 16, 17, 31, 33, 1023, 4097};
void differences(cudaStream_t stream) {
  for (Datatype type : kAll)
    for (std::size_t count : kCounts)
      for (std::size_t shift : {std::size_t{0}, element_bytes(type)}) {
        const std::size_t bytes = count * element_bytes(type);
        const Buffer in = any_bits(bytes, count + 1);
        Buffer reference = any_bits(bytes, count + 1000), wanted(bytes);
        std::copy_n(in.begin(), bytes / 2, reference.begin());  // as of weights that did not change
        delta_encode(type, in, reference, wanted);

        const OnDevice a(in, shift), b(reference, shift), delta(Buffer(bytes), shift), back(Buffer(bytes), shift);
        delta_encode_async(type, a.data(), b.data(), delta.data(), bytes, stream);
        delta_decode_async(type, delta.data(), b.data(), back.data(), bytes, stream);
        CHECK(delta.values(stream) == wanted);
        CHECK(back.values(stream) == in);
        // One address that is no multiple of 16 is enough for all three to be taken one by one.
        const OnDevice askew(Buffer(bytes), shift ? 0 : element_bytes(type));
        delta_encode_async(type, a.data(), b.data(), askew.data(), bytes, stream);
        CHECK(askew.values(stream) == wanted);

        const OnDevice over_input(in, shift), over_reference(reference, shift);
        delta_encode_async(type, over_input.data(), b.data(), over_input.data(), bytes, stream);
        CHECK(over_input.values(stream) == wanted);
        delta_decode_async(type, over_input.data(), b.data(), over_input.data(), bytes, stream);
        CHECK(over_input.values(stream) == in);
        delta_encode_async(type, a.data(), over_reference.data(), over_reference.data(), bytes, stream);
        CHECK(over_reference.values(stream) == wanted);
      }
}

/// What float32 cannot hold is not left out: it is as much of it as there can be.
void device_residuals() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr float kMost = std::numeric_limits<float>::max();
  const std::vector<double> exact{1e60, -1e60, 1e308, kInfinity, 3, 3},
      kept{9e59, 1e60, -1e308, kInfinity, kInfinity, 2};
  std::vector<float> left(exact.size());
  const auto bytes = [](const std::vector<double>& of) { return std::as_bytes(std::span(of)); };
  residual(Datatype::kF64, bytes(exact), bytes(kept), 1, left.data());
  CHECK((left == std::vector<float>{kMost, -kMost, kMost, 0, 0, 1}));
}

void residuals(cudaStream_t stream) {
  for (Datatype type : kFloats)
    for (std::size_t count : kCounts)
      for (double factor : {1.0, -0.5, 1.0 / 3, 1e300})  // the last: infinite in float32
        for (bool is_near : {false, true}) {
          const std::size_t width = element_bytes(type), bytes = count * width;
          const Buffer exact = any_bits(bytes, count + 5);  // infinities and NaNs are among them
          Buffer kept = is_near ? exact : any_bits(bytes, count + 6);
          for (std::size_t at = 0; is_near && at < bytes; at += width) kept[at] ^= std::byte{1};
          Buffer wanted(count * sizeof(float));
          std::vector<float> numbers(count);
          residual(type, exact, kept, factor, numbers.data());
          if (count) std::memcpy(wanted.data(), numbers.data(), wanted.size());
          const OnDevice a(exact, width), b(kept, 0), out(Buffer(wanted.size()), sizeof(float));
          residual_async(type, a.data(), b.data(), factor, reinterpret_cast<float*>(out.data()), bytes, stream);
          CHECK(out.values(stream) == wanted);
        }
  const DeviceBuffer memory(64);
  auto* const out = reinterpret_cast<float*>(memory.data());
  for (Datatype type : kAll)
    if (!is_real_float(type))
      CHECK_THROWS(residual_async(type, memory.data(), memory.data(), 1, out, 16, stream), UsageError,
                   std::string("a residual of ") + name_of(type) + ": expected a float of 16 bits or more");
}

/// More short pieces than one launch takes, with longer ones and empty ones among them.
void pieces(cudaStream_t stream) {
  const Buffer data = any_bits(64 << 10, 3);
  const OnDevice from(data, 1);
  const PinnedBuffer to(data.size());
  for (std::size_t count : {0, 1, 127, 128, 129, 300}) {
    std::memset(to.data(), 0, data.size());
    std::vector<Transfer> transfers;
    Buffer wanted(data.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < count; ++i, at += 200) {
      const std::size_t lengths[] = {8, 64, 65, 0, 1, 63, 199}, bytes = lengths[i % std::size(lengths)];
      transfers.push_back({to.data() + at, from.data() + at, bytes});
      std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(at), bytes,
                  wanted.begin() + static_cast<std::ptrdiff_t>(at));
    }
    fetch_async(transfers, stream);
    synchronize(stream);
    CHECK(std::equal(wanted.begin(), wanted.end(), to.data()));
  }
}

void failed_launches(cudaStream_t stream) {
  const DeviceBuffer memory(64);
  std::byte* const data = memory.data();
  const auto fails = [&](auto call) {
    cudasim::fail("cudaLaunchKernelExC", cudaErrorLaunchFailure);
    CHECK_THROWS(call(), CudaError, "cudaErrorLaunchFailure");
    call();  // and works again
  };
  fails([&] { delta_encode_async(kF32, data, data, data, 16, stream); });
  fails([&] { residual_async(kF32, data, data, 1, reinterpret_cast<float*>(data), 16, stream); });
  synchronize(stream);
}

}  // namespace

int main() {
  const Stream made = make_stream();
  differences(made.get());
  residuals(made.get());
  device_residuals();
  pieces(made.get());
  failed_launches(made.get());
}
