// qpk: the bound holds for every finite element, all others are exact, both sets of loops give the same bytes, damaged
// streams do no harm.
#include "codec/qpk.hpp"

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "codec_data.hpp"

using namespace accdp;
using enum Datatype;

namespace {

constexpr Datatype kTypes[] = {kF32, kBF16, kF16};

double value_of(Datatype type, const Buffer& data, std::size_t i) {
  if (type == kF32) {
    float value;
    std::memcpy(&value, data.data() + 4 * i, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, data.data() + 2 * i, 2);
  if (type == kBF16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
  const int exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  return sign * (exponent ? std::ldexp(mantissa + 1024, exponent - 25) : std::ldexp(mantissa, -24));
}

void check_bound(Datatype type, double bound, const Buffer& data, const Buffer& back) {
  const std::size_t width = element_bytes(type);
  for (std::size_t i = 0; i < data.size() / width; ++i) {
    const double x = value_of(type, data, i), y = value_of(type, back, i);
    if (std::isfinite(x))
      CHECK(std::fabs(x - y) <= bound);
    else
      CHECK(std::memcmp(data.data() + i * width, back.data() + i * width, width) == 0);
  }
}

/// The stream, empty where it would not be smaller. Checks the bound, and both loops, at odd addresses.
Buffer checked(Datatype type, double bound, const Buffer& data) {
  Buffer moved(data.size() + 1), stream(data.size() + 1), plain(data.size()), back(data.size());
  std::copy(data.begin(), data.end(), moved.begin() + 1);
  const std::size_t bytes = qpk_encode(type, bound, ConstBytes(moved).subspan(1), Bytes(stream).subspan(1));
  CHECK(qpk_encode(type, bound, data, plain, portable_block_ops()) == bytes);
  CHECK(bytes == 0 || bytes < data.size());
  plain.resize(bytes);
  plain.shrink_to_fit();
  CHECK(std::equal(plain.begin(), plain.end(), stream.begin() + 1));
  if (bytes == 0) return plain;
  qpk_decode(type, plain, back, portable_block_ops());
  check_bound(type, bound, data, back);
  Buffer apart(data.size() + 2, std::byte{0xa5});
  qpk_decode(type, ConstBytes(stream).subspan(1, bytes), Bytes(apart).subspan(1, data.size()));
  CHECK(std::equal(back.begin(), back.end(), apart.begin() + 1));
  CHECK(apart.front() == std::byte{0xa5} && apart.back() == std::byte{0xa5});
  return plain;
}

void sizes() {
  for (Datatype type : kTypes)
    for (Kind kind : kKinds)
      for (std::size_t blocks = 0; blocks <= 3; ++blocks)
        for (std::size_t count : {256 * blocks - 1, 256 * blocks, 256 * blocks + 1, 256 * blocks + 100})
          if (count < 4096)
            for (double bound : {1e-1, 1e-3, 1e-6}) checked(type, bound, make(kind, type, count, 5 + count));
}

/// Every number of the 16-bit types with bounds of every kind: powers of two, their neighbours, and others. Blocks of
/// neighbours in value, each a chunk of its own, and all in one chunk.
void all_patterns() {
  Random random{2};
  for (Datatype type : {kBF16, kF16})
    for (int round = 0; round < 240; ++round) {
      const int scale =
          type == kF16 ? static_cast<int>(random.below(36)) - 24 : static_cast<int>(random.below(140)) - 60;
      double bound = std::ldexp(1 + random.below(1000) / 1000.0, scale);
      if (round % 3 == 0) bound = std::ldexp(1.0, scale);
      if (round % 3 == 1) bound = std::ldexp(1 + random.below(16) / 16.0, scale) * (1 + (random.below(3) - 1.0) * 1e-7);
      Buffer all(2 * 65536);
      for (std::uint32_t i = 0; i < 65536; ++i) {
        const auto bits = static_cast<std::uint16_t>(i >> 1 | i << 15);  // both signs side by side
        std::memcpy(all.data() + 2 * i, &bits, 2);
      }
      checked(type, bound, all);
      for (std::size_t at = 0; at < all.size(); at += 1024)
        checked(type, bound, Buffer(all.begin() + static_cast<long>(at), all.begin() + static_cast<long>(at) + 1024));
    }
}

/// float32 near half steps, where rounding errors decide, up to the largest numbers that are coded.
void half_steps() {
  Random random{4};
  for (int round = 0; round < 3000; ++round) {
    const double bound =
        std::ldexp(1 + random.below(1u << 30) / 1073741824.0, static_cast<int>(random.below(180)) - 90);
    const double step = qpk_step(kF32, bound, 0);
    const std::uint32_t most = 1u << (1 + random.below(15));
    Buffer data(4 * 512);
    for (std::size_t i = 0; i < 512; ++i) {
      const double number = random.below(most) + 0.5 * random.below(3);
      auto x = static_cast<float>(number * step);
      const std::uint32_t off = random.below(5);
      if (off == 1) x = std::nextafter(x, 0.0f);
      if (off == 2) x = std::nextafter(x, HUGE_VALF);
      put(data, kF32, i, random.below(2) ? x : -x);
    }
    checked(kF32, bound, data);
  }
  for (double bound : {1e-300, 1e-45, 1e-31, 1e-30, 1e-20, 1e20, 3e38, 1e300, 1.7e308})
    for (Datatype type : kTypes)
      for (Kind kind : kKinds) checked(type, bound, make(kind, type, 2000));
}

void special_values() {
  const std::uint32_t specials[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f812345, 0xffedcba9, 0x00000001,
                                    0x80000000, 0x807fffff, 0x7f7fffff, 0x00800000, 0xff7fffff};
  for (Datatype type : kTypes)
    for (std::uint32_t special : specials)
      for (std::size_t place : {0u, 31u, 255u, 256u, 300u, 511u, 512u}) {
        Buffer data = make(Kind::kBell, type, 600);
        std::uint32_t bits = type == kF32 ? special : special >> 16;
        if (type == kF16) bits = (bits & 0x8000) | (special >> 13 & 0x7fff);
        std::memcpy(data.data() + place * element_bytes(type), &bits, element_bytes(type));
        for (double bound : {1e-2, 1e-3}) checked(type, bound, data);
      }
  // small numbers and -0 become +0, and cost nothing
  Buffer small(4 * 4096);
  for (std::size_t i = 0; i < 4096; ++i) put(small, kF32, i, i % 3 ? -0.0f : 1e-9f);
  CHECK(checked(kF32, 1e-6, small).size() == 8 + 2 * 16);
}

void ratios() {
  const auto ratio = [](Datatype type, double bound) {
    const Buffer data = make(Kind::kBell, type, 65536);
    const std::size_t bytes = checked(type, bound / 32, data).size();
    return bytes ? static_cast<double>(data.size()) / static_cast<double>(bytes) : 1;
  };
  CHECK(ratio(kF32, 0.1) > 5.5);
  CHECK(ratio(kF32, 0.01) > 3.5);
  CHECK(ratio(kF32, 0.001) > 2.6);
  CHECK(ratio(kBF16, 0.1) > 2.6);
  CHECK(ratio(kBF16, 0.01) > 1.6);
  CHECK(ratio(kF16, 0.1) > 2.7);
}

void damage() {
  Random random{13};
  int refused = 0;
  for (Datatype type : kTypes)
    for (Kind kind : {Kind::kBell, Kind::kSparse, Kind::kWide}) {
      const Buffer stream = checked(type, 0.004, make(kind, type, 900));
      if (stream.empty()) continue;
      for (int round = 0; round < 4000; ++round) {
        const Buffer bad = damaged(stream, random);
        Buffer out(900 * element_bytes(type)), again(out.size());
        bool is_refused = false;
        try {
          qpk_decode(type, bad, out);
        } catch (const CodecError&) {
          is_refused = true;
        }
        refused += is_refused;
        if (is_refused)
          CHECK_THROWS(qpk_decode(type, bad, again, portable_block_ops()), CodecError, "");
        else
          qpk_decode(type, bad, again, portable_block_ops());
        if (!is_refused) CHECK(out == again);
      }
      for (double step : {0.0, -1.0, HUGE_VAL, std::nan(""), 0.1, 1e-310, 1e300}) {
        Buffer bad = stream, out(900 * element_bytes(type));
        std::memcpy(bad.data(), &step, 8);
        CHECK_THROWS(qpk_decode(type, bad, out), CodecError, "step");
      }
    }
  CHECK(refused > 10000);
  Buffer data(4096), out(4096);
  for (double bound : {0.0, -1.0, HUGE_VAL, std::nan("")})
    CHECK_THROWS(qpk_encode(kF32, bound, data, out), UsageError, "bound");
}

/// What is on the wire must not change unnoticed: other bytes need another CodecRow::format.
void fixtures() {
  const struct {
    Datatype type;
    double bound;
    std::uint64_t hash;
  } known[] = {
      {kF32, 0.001, 0x5bc67c653ba33553},
      {kBF16, 0.001, 0x3a79523745d7600f},
      {kF16, 0.001, 0x22c010a86a2f081e},
  };
  for (const auto& one : known) {
    const std::uint64_t now = fnv(checked(one.type, one.bound, make(Kind::kBell, one.type, 5000)));
    if (now != one.hash) std::fprintf(stderr, "%s: 0x%016llx\n", name_of(one.type), (unsigned long long)now);
    CHECK(now == one.hash);
  }
}

}  // namespace

int main() {
  sizes();
  all_patterns();
  half_steps();
  special_values();
  ratios();
  damage();
  fixtures();
}
