#include "codec_data.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "base/hash.hpp"
#include "remembered.hpp"

namespace accdp {

std::uint16_t truncated(Datatype type, float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (type == Datatype::kBF16) return static_cast<std::uint16_t>(bits >> 16);
  const int exponent = static_cast<int>(bits >> 23 & 255) - 127 + 15;
  if (exponent <= 0 || exponent >= 31) return 0;
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000) | static_cast<std::uint32_t>(exponent) << 10 |
                                    (bits >> 13 & 0x3ff));
}

void put(Buffer& data, Datatype type, std::size_t i, float value) {
  if (element_bytes(type) == 4) {
    std::memcpy(data.data() + 4 * i, &value, 4);
  } else {
    const std::uint16_t bits = truncated(type, value);
    std::memcpy(data.data() + 2 * i, &bits, 2);
  }
}

float Random::bell() {
  std::int32_t sum = 0;
  for (int i = 0; i < 12; ++i) sum += static_cast<std::int32_t>(next() >> 16) - 32768;
  return static_cast<float>(sum) / 65536;
}

static Buffer made(Kind kind, Datatype type, std::size_t count, std::uint64_t seed) {
  Random random{seed};
  const std::size_t width = element_bytes(type);
  Buffer data(count * width);
  for (std::size_t i = 0; i < count; ++i) {
    const float bell = random.bell();
    const std::uint32_t bits = random.next();
    switch (kind) {
      case Kind::kBits: std::memcpy(data.data() + i * width, &bits, width); break;
      case Kind::kBell: put(data, type, i, bell * 0.03125f); break;
      case Kind::kRectified: put(data, type, i, bell > 0 ? bell : 0); break;
      case Kind::kSparse: put(data, type, i, i / 700 % 4 == 1 ? bell : 0); break;
      case Kind::kConstant: put(data, type, i, 1.5f); break;
      case Kind::kWide: put(data, type, i, bell * std::bit_cast<float>((117 + bits % 20) << 23)); break;
      case Kind::kSmallIntegers: {
        const std::uint32_t value = bits >> 16 & ((1u << bits % 7) - 1);
        std::memcpy(data.data() + i * width, &value, width);
        break;
      }
      case Kind::kRareLarge: {
        const std::uint32_t value = bits % 50 ? bits >> 8 & 3 : bits;
        std::memcpy(data.data() + i * width, &value, width);
        break;
      }
    }
  }
  return data;
}

Buffer make(Kind kind, Datatype type, std::size_t count, std::uint64_t seed) {
  static Remembered<std::tuple<Kind, Datatype, std::size_t, std::uint64_t>, Buffer> known;
  return known.get({kind, type, count, seed}, [&] { return made(kind, type, count, seed); });
}

std::uint64_t fnv(ConstBytes data) {
  Hash hash;
  for (std::byte one : data) hash.add(std::to_integer<std::uint64_t>(one));
  return hash.value();
}

Buffer damaged(const Buffer& stream, Random& random) {
  Buffer bad = stream;
  for (std::uint32_t times = 1 + random.below(3); times > 0 && !bad.empty(); --times) {
    // the tables at the beginning are hit as often as all the rest
    const auto length = static_cast<std::uint32_t>(bad.size());
    const std::uint32_t at = random.below(random.below(2) ? length : std::min<std::uint32_t>(length, 24));
    switch (random.below(5)) {
      case 0: bad[at] ^= static_cast<std::byte>(1u << random.below(8)); break;
      case 1: bad[at] = static_cast<std::byte>(random.next()); break;
      case 2: bad[at] = static_cast<std::byte>(random.below(2) ? 255 : 0); break;
      case 3: bad.resize(at); break;
      default: bad.resize(length + random.below(9)); break;
    }
  }
  bad.shrink_to_fit();  // the sanitizer then sees the first byte beyond it
  return bad;
}

}  // namespace accdp
