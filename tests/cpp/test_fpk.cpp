// fpk: every bit pattern comes back, both sets of loops give the same bytes, damaged streams do no harm.
#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "codec/fpk.hpp"

#include "base/error.hpp"
#include "codec_data.hpp"

using namespace accdp;
using enum Datatype;

namespace {

constexpr Datatype kTypes[] = {kF32, kBF16, kF16, kU16, kU32};

/// The stream, empty where it would not be smaller. Checks both loops in both directions, at odd addresses.
Buffer checked(Datatype type, const Buffer& data) {
  Buffer moved(data.size() + 1), plain(data.size());
  Buffer stream(data.size() + 1, std::byte{0xa5});  // what is there before makes no difference
  std::copy(data.begin(), data.end(), moved.begin() + 1);
  const std::size_t bytes = fpk_encode(type, ConstBytes(moved).subspan(1), Bytes(stream).subspan(1));
  CHECK(fpk_encode(type, data, plain, portable_block_ops()) == bytes);
  CHECK(bytes == 0 || bytes < data.size());
  plain.resize(bytes);
  plain.shrink_to_fit();
  CHECK(std::equal(plain.begin(), plain.end(), stream.begin() + 1));
  if (bytes == 0) return plain;
  for (const BlockOps* ops : {&block_ops(), &portable_block_ops()}) {
    Buffer back(data.size() + 2, std::byte{0xa5});
    fpk_decode(type, ConstBytes(stream).subspan(1, bytes), Bytes(back).subspan(1, data.size()), *ops);
    CHECK(std::equal(data.begin(), data.end(), back.begin() + 1));
    CHECK(back.front() == std::byte{0xa5} && back.back() == std::byte{0xa5});
  }
  return plain;
}

double ratio(Datatype type, Kind kind) {
  const Buffer data = make(kind, type, 65536);
  const std::size_t bytes = checked(type, data).size();
  return bytes ? static_cast<double>(data.size()) / static_cast<double>(bytes) : 1;
}

void sizes() {
  for (Datatype type : kTypes)
    for (Kind kind : kKinds)
      for (std::size_t blocks = 0; blocks <= 3; ++blocks)
        for (std::size_t count : {512 * blocks - 1, 512 * blocks, 512 * blocks + 1, 512 * blocks + 300})
          if (count < 4096) checked(type, make(kind, type, count, 7 + count));
}

/// All patterns of 16 bits, in blocks of neighbours (`stride` 1) and mixed, which changes how they are coded.
void all_patterns() {
  for (Datatype type : {kBF16, kF16, kU16})
    for (std::uint32_t stride : {1u, 5u, 257u, 32769u, 40503u}) {
      Buffer data(2 * 65536);
      for (std::uint32_t i = 0; i < 65536; ++i) {
        const auto bits = static_cast<std::uint16_t>(i * stride);
        std::memcpy(data.data() + 2 * i, &bits, 2);
      }
      checked(type, data);
    }
  // one odd element among equal ones: escapes at every place of a block, of every exponent
  for (Datatype type : {kF32, kBF16, kF16})
    for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
      Buffer data = make(Kind::kBell, type, 1024, exponent + 1);
      const std::uint32_t wide = exponent << 23 | 0x00412345, narrow = wide >> 16;
      for (std::size_t place : {std::size_t{exponent}, std::size_t{512}, std::size_t{1023 - exponent}})
        std::memcpy(data.data() + place * element_bytes(type), type == kF32 ? &wide : &narrow, element_bytes(type));
      checked(type, data);
    }
}

/// Blocks whose elements have at most a few different exponents or widths, so that every way of coding is taken.
void narrow_ranges() {
  Random random{3};
  for (int round = 0; round < 3000; ++round) {
    const Datatype type = kTypes[random.below(5)];
    const std::size_t width = element_bytes(type), count = 512 + random.below(600);
    const std::uint32_t lowest = random.below(256), span = 1 + random.below(20), zeros = random.below(4);
    const std::uint32_t mask = random.next() | random.next();
    Buffer data(count * width);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t bits = ((lowest + random.below(span)) & 255) << 23 | (random.next() & 0x807fffff & mask);
      if (random.below(4) < zeros) bits &= round % 2 ? 0x807fffff : 0;
      if (type == kU32) bits >>= lowest % 32;
      if (width == 2) bits >>= 16;
      std::memcpy(data.data() + i * width, &bits, width);
    }
    checked(type, data);
  }
}

/// The table of sizes takes nearly all of what the last block leaves: that has no room, and writes nothing behind it.
void no_room() {
  for (Datatype type : kTypes) {
    const std::size_t bytes = 512 * element_bytes(type);
    Buffer data = make(Kind::kBits, type, (bytes / 2 - 8) * 512);  // the table takes 16 bytes less than a block
    const Buffer bell = make(Kind::kBell, type, 512);
    const auto last = data.end() - static_cast<std::ptrdiff_t>(bytes);
    if (type == kU16 || type == kU32)
      for (std::size_t i = bytes / 512 - 1; i < bytes; i += bytes / 512) last[static_cast<long>(i)] &= std::byte{0x7f};
    else
      std::copy(bell.begin(), bell.end(), last);
    CHECK(!checked(type, Buffer(last, data.end())).empty() && checked(type, data).empty());
  }
}

void ratios() {
  CHECK(ratio(kBF16, Kind::kBell) > 1.40);
  CHECK(ratio(kF32, Kind::kBell) > 1.165);
  CHECK(ratio(kF16, Kind::kBell) > 1.11);
  CHECK(ratio(kBF16, Kind::kRectified) > 1.40);  // half the elements are zero
  for (Datatype type : {kF32, kBF16, kF16}) CHECK(ratio(type, Kind::kSparse) > 2.5);
  CHECK(ratio(kU32, Kind::kRareLarge) > 8);
  CHECK(ratio(kU16, Kind::kRareLarge) > 4.5);
  for (Datatype type : kTypes) CHECK(ratio(type, Kind::kBits) == 1);
  CHECK(checked(kF32, Buffer(4 * 65536)).size() == 2 * 128);  // only the table of sizes
}

void damage() {
  Random random{11};
  int refused = 0;
  for (Datatype type : kTypes)
    for (Kind kind : kKinds) {
      const Buffer stream = checked(type, make(kind, type, 1600));
      if (stream.empty()) continue;
      for (int round = 0; round < 1200; ++round) {
        const Buffer bad = damaged(stream, random);
        Buffer out(1600 * element_bytes(type)), again(out.size());
        bool is_refused = false;
        try {
          fpk_decode(type, bad, out);
        } catch (const CodecError&) {
          is_refused = true;
        }
        refused += is_refused;
        if (is_refused)
          CHECK_THROWS(fpk_decode(type, bad, again, portable_block_ops()), CodecError, "");
        else
          fpk_decode(type, bad, again, portable_block_ops());
        if (!is_refused) CHECK(out == again);
      }
      Buffer longer(1601 * element_bytes(type));
      CHECK_THROWS(fpk_decode(type, stream, longer), CodecError, "length");
      CHECK_THROWS(fpk_decode(type, {}, longer), CodecError, "table");
      Buffer more = stream, out(1600 * element_bytes(type));
      more.push_back(std::byte{});
      CHECK_THROWS(fpk_decode(type, more, out), CodecError, "length");
    }
  CHECK(refused > 10000);
}

/// Blocks that no encoder writes, of the length that their headers tell.
void odd_headers() {
  const auto refuses = [](Datatype type, std::initializer_list<int> header, std::size_t planes, const char* why) {
    Buffer stream(8 + header.size() + planes * 64), out(512 * element_bytes(type));  // behind its table of sizes
    const auto bytes = static_cast<std::uint16_t>(stream.size() - 8);
    std::memcpy(stream.data(), &bytes, sizeof bytes);
    std::transform(header.begin(), header.end(), stream.begin() + 8, [](int value) { return std::byte(value); });
    for (const BlockOps* ops : {&block_ops(), &portable_block_ops()})
      CHECK_THROWS(fpk_decode(type, stream, out, *ops), CodecError, why);
  };
  const char* const damaged = "damaged block";
  for (Datatype type : {kF32, kBF16, kF16}) {
    const int exponent_bits = type == kF16 ? 5 : 8;
    refuses(type, {0, 6, 0, 0}, 6, damaged);  // exponents as they are, of another width
    refuses(type, {0x80, 1, 0, 0}, 1, damaged);
    refuses(type, {0, 0x80, 0, 0}, 0, damaged);
    refuses(type, {0, 0x80 | exponent_bits, 0, 0}, static_cast<std::size_t>(exponent_bits), damaged);
    refuses(type, {0, 1, 0, 1}, 1, damaged);
  }
  for (Datatype type : {kU16, kU32}) {
    refuses(type, {0, 0, 0, 0}, 0, damaged);
    refuses(type, {2, 1, 0, 0}, 1, damaged);
    refuses(type, {0, 1, 1, 0}, 1, damaged);
    refuses(type, {0, 1, 0, 1}, 1, damaged);
    const int most = static_cast<int>(8 * element_bytes(type));
    refuses(type, {0, most, 0, 0}, static_cast<std::size_t>(most), "too large");
  }
  for (Datatype type : kTypes) {  // less than a header
    refuses(type, {0}, 0, damaged);
    refuses(type, {0, 1, 0}, 0, damaged);
  }
}

/// What is on the wire must not change unnoticed: other bytes need another CodecRow::format.
void fixtures() {
  const auto hash = [](Datatype type, Kind kind) { return fnv(checked(type, make(kind, type, 5000))); };
  const struct {
    Datatype type;
    Kind kind;
    std::uint64_t hash;
  } known[] = {
      {kF32, Kind::kBell, 0x87b8155c59cecd71},      {kBF16, Kind::kBell, 0x1e030d20a9f7ada0},
      {kF16, Kind::kBell, 0xd228fb9477bcde4d},      {kBF16, Kind::kRectified, 0x5293fa19f3eb2f2f},
      {kF32, Kind::kSparse, 0xe3fade0358422b22},    {kU16, Kind::kRareLarge, 0xf89dc9da5eeff86e},
      {kU32, Kind::kRareLarge, 0xbaad463a14e26296},
  };
  for (const auto& one : known) {
    const std::uint64_t now = hash(one.type, one.kind);
    if (now != one.hash) std::fprintf(stderr, "%s: 0x%016llx\n", name_of(one.type), (unsigned long long)now);
    CHECK(now == one.hash);
  }
}

}  // namespace

int main() {
  sizes();
  all_patterns();
  narrow_ranges();
  no_room();
  ratios();
  damage();
  odd_headers();
  fixtures();
}
