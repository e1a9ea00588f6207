#include "codec/block_ops.hpp"

#include <bit>
#include <cmath>
#include <cstring>

static_assert(std::endian::native == std::endian::little, "streams and byte rows are little endian");

#define ACCDP_ISA portable
#include "base/float16.hpp"
#include "base/processor.hpp"
#include "codec/block_loops.hpp"

namespace accdp {
namespace portable {
namespace {

constexpr std::uint64_t kEveryByte = 0x0101010101010101;

void split(const std::byte* in, int width, std::size_t count, std::uint8_t* rows) {
  for (int b = 0; b < width; ++b)
    for (std::size_t i = 0; i < count; ++i)
      rows[b * kRow + i] = std::to_integer<std::uint8_t>(in[i * static_cast<std::size_t>(width) + b]);
}

void merge(const std::uint8_t* rows, int width, std::size_t count, std::byte* out) {
  for (int b = 0; b < width; ++b)
    for (std::size_t i = 0; i < count; ++i)
      out[i * static_cast<std::size_t>(width) + b] = static_cast<std::byte>(rows[b * kRow + i]);
}

// Eight bytes at a time in one 64-bit word: the product gathers the lowest bits of the bytes in its uppermost byte.
void pack(const std::uint8_t* row, std::size_t count, int planes, std::byte* out) {
  for (int b = 0; b < planes; ++b)
    for (std::size_t i = 0; i < count; i += 8) {
      std::uint64_t bytes;
      std::memcpy(&bytes, row + i, 8);
      *out++ = static_cast<std::byte>((bytes >> b & kEveryByte) * 0x0102040810204080 >> 56);
    }
}

void unpack(const std::byte* in, std::size_t count, int planes, std::uint8_t* row) {
  for (std::size_t i = 0; i < count; i += 8) {
    std::uint64_t bytes = 0;
    for (int b = 0; b < planes; ++b) {
      const auto bits = std::to_integer<std::uint64_t>(in[(static_cast<std::size_t>(b) * count + i) / 8]);
      const std::uint64_t own_bit = bits * kEveryByte & 0x8040201008040201;
      bytes |= ((own_bit + 0x7f * kEveryByte) >> 7 & kEveryByte) << b;  // no byte carries into the next
    }
    std::memcpy(row + i, &bytes, 8);
  }
}

void count_codes(const std::uint8_t* row, std::uint8_t largest, CodeCounts& counts) {
  std::uint16_t with[256] = {};
  for (std::size_t i = 0; i < kRow; ++i) ++with[largest - row[i]];
  counts.at_least[0] = kRow;
  for (int j = 1; j < 16; ++j) counts.at_least[j] = static_cast<std::uint16_t>(counts.at_least[j - 1] - with[j - 1]);
  counts.zeros = with[largest];
}

template <Datatype type>
float load(const std::byte* in, std::size_t i) {
  if constexpr (type == Datatype::kF32) {
    float value;
    std::memcpy(&value, in + 4 * i, 4);
    return value;
  } else {
    std::uint16_t bits;
    std::memcpy(&bits, in + 2 * i, 2);
    if constexpr (type == Datatype::kBF16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
    return static_cast<float>(std::bit_cast<Float16>(bits));
  }
}

template <Datatype type>
void store(float value, std::byte* out, std::size_t i) {
  if constexpr (type == Datatype::kF32) {
    std::memcpy(out + 4 * i, &value, 4);
    return;
  }
  std::uint16_t bits;
  if constexpr (type == Datatype::kBF16) {  // to nearest, ties to even; never a NaN here
    const std::uint32_t wide = std::bit_cast<std::uint32_t>(value);
    bits = static_cast<std::uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  } else {
    bits = std::bit_cast<std::uint16_t>(static_cast<Float16>(value));
  }
  std::memcpy(out + 2 * i, &bits, 2);
}

/// The nearest integer, ties to even, of |value| < 2^22: the sum has no room for a fraction.
std::int32_t nearest(float value) {
  constexpr float kNoFraction = 0x1.8p23f;
  return std::bit_cast<std::int32_t>(value + kNoFraction) - std::bit_cast<std::int32_t>(kNoFraction);
}

template <Datatype type>
int quantise_as(const std::byte* in, float inverse, float limit, std::uint8_t* rows) {
  std::uint32_t bits = 0;
  bool fits = true;
  for (std::size_t i = 0; i < 256; ++i) {
    const float scaled = load<type>(in, i) * inverse;
    const bool is_in = std::fabs(scaled) <= limit;  // never for NaN
    fits &= is_in;
    const std::int32_t number = nearest(is_in ? scaled : 0);
    const std::uint32_t zigzag = static_cast<std::uint32_t>(number) << 1 ^ static_cast<std::uint32_t>(number >> 31);
    bits |= zigzag;
    rows[i] = static_cast<std::uint8_t>(zigzag);
    rows[kRow + i] = static_cast<std::uint8_t>(zigzag >> 8);
  }
  return fits ? std::bit_width(bits) : -1;
}

template <Datatype type>
void dequantise_as(const std::uint8_t* rows, float delta, std::byte* out) {
  for (std::size_t i = 0; i < 256; ++i) {
    const int zigzag = rows[i] | rows[kRow + i] << 8;
    store<type>(static_cast<float>(zigzag >> 1 ^ -(zigzag & 1)) * delta, out, i);
  }
}

int quantise(Datatype type, const std::byte* in, float inverse, float limit, std::uint8_t* rows) {
  switch (type) {
    case Datatype::kF32: return quantise_as<Datatype::kF32>(in, inverse, limit, rows);
    case Datatype::kBF16: return quantise_as<Datatype::kBF16>(in, inverse, limit, rows);
    default: return quantise_as<Datatype::kF16>(in, inverse, limit, rows);
  }
}

void dequantise(Datatype type, const std::uint8_t* rows, float delta, std::byte* out) {
  switch (type) {
    case Datatype::kF32: return dequantise_as<Datatype::kF32>(rows, delta, out);
    case Datatype::kBF16: return dequantise_as<Datatype::kBF16>(rows, delta, out);
    default: return dequantise_as<Datatype::kF16>(rows, delta, out);
  }
}

}  // namespace
}  // namespace portable

const BlockOps& portable_block_ops() noexcept {
  static constexpr BlockOps ops = {
      portable::split,          portable::merge,      portable::pack,
      portable::unpack,         portable::list_ones,  portable::part_exponents,
      portable::join_exponents, portable::part_half,  portable::join_half,
      portable::largest,        portable::any,        portable::count_codes,
      portable::make_codes,     portable::from_codes, portable::choose_planes,
      portable::clip,           portable::quantise,   portable::dequantise,
  };
  return ops;
}

#if defined(__x86_64__)
extern const BlockOps kBlockOpsAvx2;
namespace {
const bool kHasAvx2 = has_avx2();
}  // namespace
const BlockOps& block_ops() noexcept { return kHasAvx2 ? kBlockOpsAvx2 : portable_block_ops(); }
#else
const BlockOps& block_ops() noexcept { return portable_block_ops(); }
#endif

}  // namespace accdp
