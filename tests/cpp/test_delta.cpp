// Differences to a reference: exact for all bits, small where values are near each other, in place as well.
#include <cstring>

#include "codec/delta.hpp"

#include "codec_data.hpp"

using namespace accdp;
using enum Datatype;

namespace {

constexpr Datatype kAll[] = {kBool, kU8,  kI8,   kU16, kI16, kU32, kI32,  kU64,
                             kI64,  kF16, kBF16, kF32, kF64, kC64, kC128, kBytes};

Buffer random_bytes(std::size_t bytes, std::uint64_t seed) {
  Random random{seed};
  Buffer data(bytes);
  for (std::byte& one : data) one = static_cast<std::byte>(random.next() >> 8);
  return data;
}

Buffer encoded(Datatype type, const Buffer& in, const Buffer& reference) {
  Buffer delta(in.size()), back(in.size());
  delta_encode(type, in, reference, delta);
  delta_decode(type, delta, reference, back);
  CHECK(back == in);
  Buffer place = reference;
  delta_encode(type, in, place, place);
  CHECK(place == delta);
  place = in;
  delta_encode(type, place, reference, place);
  CHECK(place == delta);
  place = reference;
  delta_decode(type, delta, place, place);
  CHECK(place == in);
  place = delta;
  delta_decode(type, place, reference, place);
  CHECK(place == in);
  return delta;
}

void random_bits() {
  for (Datatype type : kAll)
    for (std::size_t count = 0; count < 70; ++count) {
      const std::size_t bytes = count * element_bytes(type);
      const Buffer in = random_bytes(bytes, count + 1), reference = random_bytes(bytes, count + 1000);
      const Buffer delta = encoded(type, in, reference);
      CHECK(encoded(type, in, in) == Buffer(bytes));
      // odd addresses
      Buffer a(bytes + 1), b(bytes + 1), out(bytes + 2, std::byte{0xa5});
      std::copy(in.begin(), in.end(), a.begin() + 1);
      std::copy(reference.begin(), reference.end(), b.begin() + 1);
      delta_encode(type, ConstBytes(a).subspan(1), ConstBytes(b).subspan(1), Bytes(out).subspan(1, bytes));
      CHECK(std::equal(delta.begin(), delta.end(), out.begin() + 1));
      CHECK(out.front() == std::byte{0xa5} && out.back() == std::byte{0xa5});
    }
}

/// One pair of elements of T's width.
template <class T>
std::uint64_t one(Datatype type, T value, T reference) {
  Buffer a(sizeof(T)), b(sizeof(T));
  std::memcpy(a.data(), &value, sizeof(T));
  std::memcpy(b.data(), &reference, sizeof(T));
  const Buffer delta = encoded(type, a, b);
  T out;
  std::memcpy(&out, delta.data(), sizeof(T));
  return out;
}

void values() {
  CHECK(one<std::uint8_t>(kU8, 5, 3) == 4 && one<std::uint8_t>(kU8, 3, 5) == 3 && one<std::uint8_t>(kU8, 0, 255) == 2);
  CHECK(one<std::uint32_t>(kI32, 0xffffffff, 0) == 1 && one<std::uint32_t>(kI32, 0x80000000, 0x7fffffff) == 2);
  CHECK(one<std::uint64_t>(kI64, 7, 0) == 14 && one<std::uint64_t>(kU64, 0, 7) == 13);
  // floats: neighbours differ by one, also across zero
  for (Datatype type : {kF16, kBF16})
    for (std::uint32_t bits = 0; bits < 0x7fff; ++bits) {
      const auto x = static_cast<std::uint16_t>(bits), next = static_cast<std::uint16_t>(bits + 1);
      CHECK(one<std::uint16_t>(type, next, x) == 2 && one<std::uint16_t>(type, x, next) == 1);
      CHECK(one<std::uint16_t>(type, next | 0x8000, x | 0x8000) == 1);
    }
  CHECK(one<std::uint32_t>(kF32, 0x80000000, 0) == 1 && one<std::uint32_t>(kF32, 1, 0x80000001) == 6);
  CHECK(one<std::uint64_t>(kF64, 0, 0x8000000000000000) == 2);
}

void types() {
  CHECK(delta_type(kBool) == kU8 && delta_type(kBytes) == kU8 && delta_type(kI8) == kU8 && delta_type(kU8) == kU8);
  CHECK(delta_type(kI16) == kU16 && delta_type(kF16) == kU16 && delta_type(kBF16) == kU16);
  CHECK(delta_type(kI32) == kU32 && delta_type(kF32) == kU32 && delta_type(kC64) == kU32);
  CHECK(delta_type(kU64) == kU64 && delta_type(kF64) == kU64 && delta_type(kC128) == kU64);
}

void fixtures() {
  const Buffer a = random_bytes(4096, 1), b = random_bytes(4096, 2);
  const struct {
    Datatype type;
    std::uint64_t hash;
  } known[] = {
      {kU8, 0x6e65810608ac6057},  {kI16, 0x7da8782d6bfd9b8e}, {kBF16, 0xd7b3900c77fb89c3},
      {kI32, 0x8261c9c3d2da6023}, {kF32, 0xa227a8b0754f857c}, {kF64, 0x73ce70fff87a18d5},
  };
  for (const auto& each : known) {
    const std::uint64_t now = fnv(encoded(each.type, a, b));
    if (now != each.hash) std::fprintf(stderr, "%s: 0x%016llx\n", name_of(each.type), (unsigned long long)now);
    CHECK(now == each.hash);
  }
}

}  // namespace

int main() {
  random_bits();
  values();
  types();
  fixtures();
}
