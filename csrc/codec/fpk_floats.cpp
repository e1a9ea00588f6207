// A block of floats: exponents are stored as their distance below a base, in few bits, the rest (sign and mantissa) as
// it is. After the header come the planes of the codes, then those planes of the rest which are not all zero, then the
// escaped exponents, a byte each.
#include <algorithm>

#include "codec/block_stream.hpp"
#include "codec/fpk_blocks.hpp"

namespace accdp {
namespace {

constexpr std::uint8_t kZeroCode = 0x80;  // in FpkHeader::planes: the last code before the escape is exponent 0
constexpr int kMostCodePlanes = 4;
constexpr int kMostBelowLargest = 3;

/// Where the parts of an element stand among the byte rows.
struct Layout {
  int width;          // bytes of an element
  int exponent_bits;  // 5: float16, whose sign and upper mantissa bits are three planes of bits
  int rest_rows;      // rows 0 .. rest_rows - 1 are the rest, the last row of the element is the exponents
  int rest_planes;

  std::size_t exponents() const { return static_cast<std::size_t>(width - 1) * kRow; }
};
constexpr Layout kLayoutF16 = {2, 5, 1, 3}, kLayoutBF16 = {2, 8, 1, 0}, kLayoutF32 = {4, 8, 3, 0};

const Layout& layout_of(Datatype type) {
  return type == Datatype::kF16 ? kLayoutF16 : type == Datatype::kBF16 ? kLayoutBF16 : kLayoutF32;
}

/// How exponents become codes of `planes` bits. More than kMostCodePlanes: the exponents themselves.
struct Code {
  int planes = 0;
  std::uint8_t base = 0;
  bool has_zero = false;
  std::size_t escapes = 0;

  bool is_plain() const { return planes > kMostCodePlanes; }
  CodeRange range() const {
    const auto escape = static_cast<std::uint8_t>((1 << planes) - 1);
    return {base, static_cast<std::uint8_t>(has_zero ? escape - 1 : escape), escape, has_zero};
  }
};

/// The cheapest way; of equally cheap ones the first, so that every implementation finds the same.
Code choose_code(const CodeCounts& counts, std::uint8_t largest, int exponent_bits) {
  if (counts.at_least[1] == 0) return {0, largest, false, 0};
  // An offer is one number, bytes above choice, so that their minimum needs no branch.
  const auto offer = [](std::size_t bytes, int planes, int below, bool has_zero) {
    return static_cast<std::uint32_t>(bytes) << 8 | static_cast<std::uint32_t>(planes << 4 | below << 1 | has_zero);
  };
  std::uint32_t best = offer(static_cast<std::size_t>(exponent_bits) * kPlaneBytes, 0, 0, false);
  for (int planes = 1; planes <= kMostCodePlanes; ++planes) {
    const std::size_t plane_bytes = static_cast<std::size_t>(planes) * kPlaneBytes;
    // with 15 codes, a base below the largest gains nothing worth the search
    const int most_below = planes == kMostCodePlanes ? 0 : std::min<int>(kMostBelowLargest, largest);
    for (int below = 0; below <= most_below; ++below) {
      const std::size_t above = kRow - counts.at_least[below];
      const int first = below + (1 << planes) - 1;  // the first distance that has no code
      best = std::min(best, offer(plane_bytes + above + counts.at_least[first], planes, below, false));
      if (counts.zeros == 0 || largest < first - 1) continue;  // no zeros, or they have a code anyway
      best =
          std::min(best, offer(plane_bytes + above + counts.at_least[first - 1] - counts.zeros, planes, below, true));
    }
  }
  const int planes = best >> 4 & 15, below = best >> 1 & 7;
  if (planes == 0) return {exponent_bits, 0, false, 0};
  return {planes, static_cast<std::uint8_t>(largest - below), (best & 1) != 0,
          (best >> 8) - static_cast<std::size_t>(planes) * kPlaneBytes};
}

/// Bytes of the rest planes whose bits are set.
std::size_t rest_bytes(const Layout& layout, unsigned present) {
  const unsigned rows = present & ((1u << layout.rest_rows) - 1);
  return static_cast<std::size_t>(std::popcount(rows)) * kRow +
         static_cast<std::size_t>(std::popcount(present & ~rows)) * kPlaneBytes;
}

}  // namespace

std::size_t fpk_encode_floats(const BlockOps& ops, Datatype type, const std::byte* block, Bytes room) {
  const Layout& layout = layout_of(type);
  alignas(64) std::uint8_t rows[4 * kRow], codes[kRow];
  alignas(64) std::byte top[3 * kPlaneBytes];
  std::uint8_t* exponents = rows + layout.exponents();
  ops.split(block, layout.width, kRow, rows);
  unsigned present = 0;
  if (layout.rest_planes) {
    ops.part_half(exponents, codes);
    ops.pack(codes, kRow, layout.rest_planes, top);
    for (int p = 0; p < layout.rest_planes; ++p)
      if (!all_zero(top + static_cast<std::size_t>(p) * kPlaneBytes, kPlaneBytes))
        present |= 1u << (layout.rest_rows + p);
  } else {
    ops.part_exponents(exponents, exponents - kRow);
  }
  for (int r = 0; r < layout.rest_rows; ++r)
    if (ops.any(rows + static_cast<std::size_t>(r) * kRow)) present |= 1u << r;

  CodeCounts counts;
  const std::uint8_t largest = ops.largest(exponents);
  ops.count_codes(exponents, largest, counts);
  const Code code = choose_code(counts, largest, layout.exponent_bits);

  const std::size_t code_bytes = static_cast<std::size_t>(code.planes) * kPlaneBytes;
  const std::size_t before = sizeof(FpkHeader) + code_bytes + rest_bytes(layout, present);
  const std::size_t bytes = before + padded(code.escapes);
  if (bytes > room.size() || bytes >= static_cast<std::size_t>(layout.width) * kRow) return bytes;

  const FpkHeader header = {static_cast<std::uint8_t>(present),
                            static_cast<std::uint8_t>(code.planes | (code.has_zero ? kZeroCode : 0)), code.base, 0};
  std::byte* to = room.data();
  std::memcpy(to, &header, sizeof header);
  to += sizeof header;
  if (code.planes > 0) {
    if (!code.is_plain()) ops.make_codes(exponents, code.range(), codes);
    ops.pack(code.is_plain() ? exponents : codes, kRow, code.planes, to);
  }
  std::byte* after_codes = to + code_bytes;
  for (int r = 0; r < layout.rest_rows; ++r)
    if (present >> r & 1) {
      std::memcpy(after_codes, rows + static_cast<std::size_t>(r) * kRow, kRow);
      after_codes += kRow;
    }
  for (int p = 0; p < layout.rest_planes; ++p)
    if (present >> (layout.rest_rows + p) & 1) {
      std::memcpy(after_codes, top + static_cast<std::size_t>(p) * kPlaneBytes, kPlaneBytes);
      after_codes += kPlaneBytes;
    }
  if (code.escapes > 0) {
    std::memset(room.data() + bytes - 4, 0, 4);  // the padding
    Escapes escapes;
    escapes.find(ops, to, code.planes);
    escapes.gather(exponents, after_codes);
  }
  return bytes;
}

void fpk_decode_floats(const BlockOps& ops, Datatype type, ConstBytes in, std::byte* block) {
  const Layout& layout = layout_of(type);
  FpkHeader header;
  if (in.size() < sizeof header) throw_bad_block();
  std::memcpy(&header, in.data(), sizeof header);
  const Code code = {header.planes & ~kZeroCode, header.base, (header.planes & kZeroCode) != 0};
  const unsigned present = header.rest;
  if ((code.is_plain() && code.planes != layout.exponent_bits) || present >> (layout.rest_rows + layout.rest_planes) ||
      (code.has_zero && (code.is_plain() || code.planes == 0)) || header.unused)
    throw_bad_block();
  const std::size_t code_bytes = static_cast<std::size_t>(code.planes) * kPlaneBytes;
  const std::size_t before = sizeof header + code_bytes + rest_bytes(layout, present);
  if (before > in.size()) throw_bad_block();

  const std::byte* planes = in.data() + sizeof header;
  const bool has_escapes = code.planes > 0 && !code.is_plain();
  Escapes escapes;
  if (has_escapes) escapes.find(ops, planes, code.planes);
  if (padded(escapes.count) != in.size() - before) throw_bad_block();

  alignas(64) std::uint8_t rows[4 * kRow], top[kRow];
  std::uint8_t* exponents = rows + layout.exponents();
  ops.unpack(planes, kRow, code.planes, exponents);
  if (!code.is_plain()) ops.from_codes(exponents, code.range());
  escapes.scatter(in.data() + before, exponents);

  const std::byte* from = planes + code_bytes;
  for (int r = 0; r < layout.rest_rows; ++r) {
    std::uint8_t* row = rows + static_cast<std::size_t>(r) * kRow;
    if (present >> r & 1) {
      std::memcpy(row, from, kRow);
      from += kRow;
    } else {
      std::memset(row, 0, kRow);
    }
  }
  if (layout.rest_planes) {
    alignas(64) std::byte all[3 * kPlaneBytes] = {};
    for (int p = 0; p < layout.rest_planes; ++p)
      if (present >> (layout.rest_rows + p) & 1) {
        std::memcpy(all + static_cast<std::size_t>(p) * kPlaneBytes, from, kPlaneBytes);
        from += kPlaneBytes;
      }
    ops.unpack(all, kRow, layout.rest_planes, top);
    ops.join_half(exponents, top);
  } else {
    ops.join_exponents(exponents, exponents - kRow);
  }
  ops.merge(rows, layout.width, kRow, block);
}

}  // namespace accdp
