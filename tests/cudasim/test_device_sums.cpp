// Checksums and standard deviations of device memory against the host's loops: lengths around words and parts, and of
// the most parts; beside multiples of 16 bytes; every float, and what does not count among them.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "codec/crc32c.hpp"
#include "codec/cuda_sums.hpp"
#include "codec/spread.hpp"
#include "on_device.hpp"

using enum Datatype;

namespace {

constexpr Datatype kFloats[] = {kF16, kBF16, kF32, kF64};
constexpr std::size_t kMost = 256 << 10;  // parts
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Room on the device for the parts of so many bytes and their result. Nothing around them may be written.
template <class Part>
struct Room {
  OnDevice parts, result;
  explicit Room(std::size_t bytes)
      : parts(Buffer(sum_parts(bytes) * sizeof(Part)), 0), result(Buffer(sizeof(Part)), sizeof(Part)) {}
  Part* parts_data() const { return reinterpret_cast<Part*>(parts.data()); }
  Part* result_data() const { return reinterpret_cast<Part*>(result.data()); }
  Part value(cudaStream_t stream) const {
    parts.values(stream);
    Part found;
    std::memcpy(&found, result.values(stream).data(), sizeof found);
    return found;
  }
};

void check_checksum(ConstBytes data, std::size_t shift, cudaStream_t stream) {
  const OnDevice there(Buffer(data.begin(), data.end()), shift);
  const Room<std::uint32_t> room(data.size());
  crc32c_async(there.data(), data.size(), room.parts_data(), room.result_data(), stream);
  const std::uint32_t found = room.value(stream), wanted = crc32c(data);
  CHECK(found == wanted);
  for (std::uint32_t seed : {0u, 1u, 0xdeadbeefu}) CHECK(crc32c_joined(seed, found, data.size()) == crc32c(data, seed));
}

void checksums(cudaStream_t stream) {
  for (std::size_t bytes : {0u, 1u, 2u, 15u, 16u, 17u, 31u, 32u, 33u, 63u, 64u, 127u, 128u, 4095u, 4096u, 4097u,
                            10'007u, (64u << 10) + 5, (1u << 20) + 3})
    for (std::size_t shift = 0; shift < 16; shift += bytes < 10'000 ? 1 : 5)
      for (std::uint64_t seed : {1, 2, 3}) check_checksum(any_bits(bytes, bytes + (seed << 32)), shift, stream);
  // The most parts, each of several rounds, of which the first is not full.
  const Buffer data = any_bits((40 << 20) + 321, 7);
  CHECK(sum_parts(data.size()) == kMost);
  check_checksum(data, 3, stream);
  check_checksum(ConstBytes(data).first(32 << 20), 0, stream);  // all are
  // Of zeros in front of which something is, only the number counts.
  Buffer zeros((1 << 20) + 7);
  zeros[0] = std::byte{1};
  check_checksum(zeros, 1, stream);
}

/// By two passes.
double deviation_by_definition(const std::vector<double>& values) {
  long double mean = 0, squares = 0;
  std::size_t count = 0;
  for (double value : values)
    if (std::isfinite(value)) mean += value, ++count;
  if (count < 2) return 0;
  mean /= count;
  for (double value : values)
    if (std::isfinite(value)) squares += (value - mean) * (value - mean);
  return static_cast<double>(std::sqrt(squares / count));
}

double widened(Datatype type, const std::byte* at) {
  std::uint16_t bits;
  float single;
  double wide;
  std::memcpy(&bits, at, sizeof bits);
  switch (type) {
    case kF64: return std::memcpy(&wide, at, sizeof wide), wide;
    case kF32: return std::memcpy(&single, at, sizeof single), single;
    case kBF16: return std::bit_cast<float>(std::uint32_t{bits} << 16);
    default: break;
  }
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double size = exponent == 31 ? (mantissa ? std::nan("") : kInfinity)
                      : exponent     ? std::ldexp(1024 + mantissa, exponent - 25)
                                     : std::ldexp(mantissa, -24);
  return bits & 0x8000 ? -size : size;
}

/// Values of the type nearest to zero among those around `value`; infinities and NaN as such.
void put_value(Buffer& data, Datatype type, std::size_t i, double value) {
  std::byte* const at = data.data() + i * element_bytes(type);
  if (type == kF64) return void(std::memcpy(at, &value, sizeof value));
  const auto single = static_cast<float>(value);
  if (type == kF32) return void(std::memcpy(at, &single, sizeof single));
  std::uint16_t bits = truncated(type, single);
  if (type == kF16 && !std::isfinite(value)) bits = std::isnan(value) ? 0x7e00 : value > 0 ? 0x7c00 : 0xfc00;
  if (type == kF16 && value == 0 && std::signbit(value)) bits = 0x8000;
  std::memcpy(at, &bits, sizeof bits);
}

/// shift: in elements.
double deviation_on_device(Datatype type, const Buffer& data, std::size_t shift, cudaStream_t stream) {
  const OnDevice values(data, shift * element_bytes(type));
  const Room<Spread> room(data.size());
  spread_async(type, values.data(), data.size(), room.parts_data(), room.result_data(), stream);
  return deviation_of(room.value(stream));
}

void check_deviation(Datatype type, const Buffer& data, std::size_t shift, cudaStream_t stream) {
  const auto is_near = [](double a, double b, double share) { return std::abs(a - b) <= share * std::abs(b); };
  std::vector<double> values;
  for (std::size_t at = 0; at < data.size(); at += element_bytes(type)) values.push_back(widened(type, &data[at]));
  const double found = deviation_on_device(type, data, shift, stream);
  CHECK(is_near(found, deviation_by_definition(values), 1e-9));
  CHECK(is_near(found, standard_deviation(type, data), 1e-5));  // the host has runs in float32
}

/// Bell-shaped values around `mean`.
Buffer bell(Datatype type, std::size_t count, double mean, std::uint64_t seed) {
  Random random{seed};
  Buffer data(count * element_bytes(type));
  for (std::size_t i = 0; i < count; ++i) put_value(data, type, i, mean + random.bell() / 4);
  return data;
}

void deviations(cudaStream_t stream) {
  for (Datatype type : kFloats) {
    const std::size_t width = element_bytes(type);
    for (std::size_t count : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 255, 257, 1001, 4097, 100'003})
      for (double mean : {0.0, 3.0})
        for (std::size_t shift = 0; shift < 16 / width; shift += count < 1000 ? 1 : 3)
          for (std::uint64_t seed : {1, 2}) {
            Buffer data = bell(type, count, mean, seed);
            check_deviation(type, data, shift, stream);
            if (count < 15) continue;
            // What does not count: in front of all, so that it is no origin, at the end, and in between.
            for (double odd : {std::nan(""), kInfinity, -kInfinity}) {
              for (std::size_t i : {std::size_t{0}, std::size_t{1}, count / 2, count - 1})
                put_value(data, type, i, odd);
              check_deviation(type, data, shift, stream);
            }
            put_value(data, type, 2, -0.0);
            put_value(data, type, count - 3, 0.0);
            check_deviation(type, data, shift, stream);
          }
    // Several sizes of number, the largest first or last.
    for (double large : {1e3, -1e4})
      for (bool is_first : {true, false}) {
        Buffer data = bell(type, 5000, 0, 3);
        put_value(data, type, is_first ? 0 : 4999, large);
        check_deviation(type, data, 1, stream);
      }
    const Buffer same = bell(type, 1, 3, 1), nan(50'000 * width, std::byte{0xff});
    Buffer constant;
    for (int i = 0; i < 7777; ++i) constant.insert(constant.end(), same.begin(), same.end());
    for (const Buffer& data : {same, constant, nan}) CHECK(deviation_on_device(type, data, 1, stream) == 0);
    // The most parts.
    const Buffer many = bell(type, (20 << 20) / width + 5, 1, 4);
    CHECK(sum_parts(many.size()) == kMost);
    check_deviation(type, many, 1, stream);
  }
  // Around a mean that is large beside the deviation; and numbers whose squares overflow, as in the host.
  check_deviation(kF64, bell(kF64, 100'003, 1e8, 5), 1, stream);
  Buffer wide = bell(kF64, 1000, 0, 6);
  put_value(wide, kF64, 500, 1e305);  // does not count
  CHECK(deviation_on_device(kF64, wide, 0, stream) > 0);
  put_value(wide, kF64, 500, 1e200);
  CHECK(deviation_on_device(kF64, wide, 0, stream) == 0 && standard_deviation(kF64, wide) == 0);

  const DeviceBuffer memory(256);
  auto* const room = reinterpret_cast<Spread*>(memory.data() + 64);
  for (Datatype type : {kF8E4M3, kI32, kC64})
    CHECK_THROWS(spread_async(type, memory.data(), 16, room, room + 1, stream), UsageError,
                 std::string("a standard deviation of ") + name_of(type));
}

void failed_launches(cudaStream_t stream) {
  const DeviceBuffer memory(64 << 10), room(64 << 10);
  const auto fails = [&](int launches, auto call) {
    for (int nth = 1; nth <= launches; ++nth) {
      cudasim::fail("cudaLaunchKernelExC", cudaErrorLaunchFailure, nth);
      CHECK_THROWS(call(), CudaError, "cudaErrorLaunchFailure");
      call();  // and works again
    }
  };
  auto* const words = reinterpret_cast<std::uint32_t*>(room.data());
  auto* const spreads = reinterpret_cast<Spread*>(room.data());
  fails(3, [&] { crc32c_async(memory.data(), memory.bytes(), words + 1, words, stream); });
  fails(3, [&] { spread_async(kF32, memory.data(), memory.bytes(), spreads + 1, spreads, stream); });
  synchronize(stream);
}

}  // namespace

int main() {
  const Stream made = make_stream();
  checksums(made.get());
  deviations(made.get());
  failed_launches(made.get());
}
