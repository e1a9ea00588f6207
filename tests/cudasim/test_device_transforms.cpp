// The kernels around the codecs against the host's loops: differences, residuals, checksums, standard deviations, and
// short pieces on their way to the host. All types, odd counts, any bits; at multiples of 16 bytes, where kernels take
// 16 at a time, and beside them.
#include <cmath>
#include <limits>

#include "codec/crc32c.hpp"
#include "codec/cuda_transforms.hpp"
#include "codec/delta.hpp"
#include "codec/residual.hpp"
#include "codec/spread.hpp"
#include "codec_data.hpp"
#include "cudasim.hpp"

using namespace accdp;
using enum Datatype;

namespace {

constexpr Datatype kAll[] = {kBool, kU8,   kI8,  kU16, kI16, kU32,  kI32,    kU64,    kI64,
                             kF16,  kBF16, kF32, kF64, kC64, kC128, kF8E4M3, kF8E5M2, kBytes};
constexpr Datatype kFloats[] = {kF16, kBF16, kF32, kF64};
constexpr std::size_t kCounts[] = {0, 1, 3, 7, 15, 16, 17, 31, 33, 1023, 4097};
constexpr std::size_t kGuard = 16;  // bytes behind a result, which nothing may write
constexpr std::byte kUntouched{0xa5};

/// Bits that mean anything to any type.
Buffer any_bits(std::size_t bytes, std::uint64_t seed) {
  Random random{seed};
  Buffer data(bytes);
  for (std::byte& one : data) one = static_cast<std::byte>(random.next() >> 8);
  return data;
}

/// Memory of the device at `shift` bytes from a multiple of 16.
class OnDevice {
 public:
  OnDevice(const Buffer& values, std::size_t shift)
      : bytes_(values.size()), shift_(shift), room_(shift + bytes_ + kGuard) {
    std::memset(room_.data(), static_cast<int>(kUntouched), room_.bytes());
    std::copy(values.begin(), values.end(), data());
  }
  std::byte* data() const { return room_.data() + shift_; }
  /// What is there, once the stream is done; nothing around it has been written.
  Buffer values(cudaStream_t stream) const {
    synchronize(stream);
    const auto is_untouched = [](std::byte one) { return one == kUntouched; };
    CHECK(std::all_of(room_.data(), data(), is_untouched));
    CHECK(std::all_of(data() + bytes_, data() + bytes_ + kGuard, is_untouched));
    Buffer found(bytes_);
    std::copy_n(data(), bytes_, found.begin());
    return found;
  }

 private:
  std::size_t bytes_, shift_;
  DeviceBuffer room_;
};

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

void checksums(cudaStream_t stream) {
  for (std::size_t bytes : {0u, 1u, 2u, 1023u, 1024u, 1025u, 2048u, 10'007u})
    for (std::size_t shift : {0, 1, 3}) {
      const Buffer data = any_bits(bytes, bytes + 9);
      const std::size_t runs = (bytes + kCrcRun - 1) / kCrcRun;
      const OnDevice on_device(data, shift), sums(Buffer(runs * sizeof(std::uint32_t)), 0);
      crc32c_async(on_device.data(), bytes, reinterpret_cast<std::uint32_t*>(sums.data()), stream);
      const Buffer found = sums.values(stream);
      std::vector<std::uint32_t> each(runs);
      if (runs) std::memcpy(each.data(), found.data(), found.size());
      for (std::size_t run = 0; run < runs; ++run) {
        const std::size_t begin = run * kCrcRun;
        CHECK(each[run] == detail::crc32c_table(ConstBytes(data).subspan(begin, std::min(kCrcRun, bytes - begin)), 0));
      }
      for (std::uint32_t seed : {0u, 0xdeadbeefu}) CHECK(crc32c_joined(each, bytes, seed) == crc32c(data, seed));
    }
}

double deviation_on_device(Datatype type, const Buffer& data, cudaStream_t stream) {
  const std::size_t parts = spread_parts(type, data.size());
  const OnDevice values(data, element_bytes(type)), sums(Buffer(parts * sizeof(SpreadSums)), 0);
  spread_async(type, values.data(), data.size(), reinterpret_cast<SpreadSums*>(sums.data()), stream);
  const Buffer found = sums.values(stream);
  std::vector<SpreadSums> each(parts);
  std::memcpy(each.data(), found.data(), found.size());
  return deviation_of(each.data(), parts);
}

/// Bell-shaped values around `mean`.
Buffer bell(Datatype type, std::size_t count, float mean) {
  Random random{count};
  Buffer data(count * element_bytes(type));
  for (std::size_t i = 0; i < count; ++i) {
    const float value = mean + random.bell() / 4;
    const double wide = value;
    const std::uint16_t narrow = truncated(type, value);
    const void* bits = type == kF64   ? static_cast<const void*>(&wide)
                       : type == kF32 ? &value
                                      : static_cast<const void*>(&narrow);
    std::memcpy(data.data() + i * element_bytes(type), bits, element_bytes(type));
  }
  return data;
}

void deviations(cudaStream_t stream) {
  const auto is_near = [](double a, double b) { return std::abs(a - b) <= 1e-5 * std::abs(b); };  // host: float32 runs
  for (Datatype type : kFloats) {
    for (std::size_t count : {2, 3, 255, 257, 1001, 100'003})
      for (float mean : {0.0f, 3.0f}) {
        Buffer data = bell(type, count, mean);
        CHECK(is_near(deviation_on_device(type, data, stream), standard_deviation(type, data)));
        std::fill_n(data.begin(), element_bytes(type), std::byte{0xff});  // a NaN, in front of all
        CHECK(is_near(deviation_on_device(type, data, stream), standard_deviation(type, data)));
      }
    const Buffer same = bell(type, 1, 3), nan(5 * element_bytes(type), std::byte{0xff});
    Buffer constant;
    for (int i = 0; i < 777; ++i) constant.insert(constant.end(), same.begin(), same.end());
    for (const Buffer& data : {same, constant, nan}) CHECK(deviation_on_device(type, data, stream) == 0);
  }
  const DeviceBuffer memory(64);
  for (Datatype type : {kF8E4M3, kI32, kC64})
    CHECK_THROWS(spread_async(type, memory.data(), 16, reinterpret_cast<SpreadSums*>(memory.data()), stream),
                 UsageError, std::string("a standard deviation of ") + name_of(type));
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
  fails([&] { crc32c_async(data, 16, reinterpret_cast<std::uint32_t*>(data + 16), stream); });
  fails([&] { spread_async(kF32, data, 16, reinterpret_cast<SpreadSums*>(data + 16), stream); });
  synchronize(stream);
}

}  // namespace

int main() {
  const Stream made = make_stream();
  differences(made.get());
  residuals(made.get());
  checksums(made.get());
  deviations(made.get());
  pieces(made.get());
  failed_launches(made.get());
}
