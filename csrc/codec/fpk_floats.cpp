// A block of floats: exponents are stored as their distance below a base, in few bits, the rest (sign and mantissa) as
// it is. After the header come the planes of the codes, then those planes of the rest which are not all zero, then the
// escaped exponents, a byte each.
#include "codec/block_stream.hpp"
#include "codec/fpk_blocks.hpp"
#include "codec/fpk_code.hpp"

namespace accdp {
namespace {

const FpkLayout& layout_of(Datatype type) {
  return type == Datatype::kF16 ? kFpkF16 : type == Datatype::kBF16 ? kFpkBF16 : kFpkF32;
}

}  // namespace

std::size_t fpk_encode_floats(const BlockOps& ops, Datatype type, const std::byte* block, Bytes room) {
  const FpkLayout& layout = layout_of(type);
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
  const FpkCode code = choose_fpk_code(counts, largest, layout.exponent_bits);

  const std::size_t code_bytes = static_cast<std::size_t>(code.planes) * kPlaneBytes;
  const std::size_t before = sizeof(FpkHeader) + code_bytes + layout.rest_bytes(present);
  const std::size_t bytes = before + padded(code.escapes);
  if (bytes > room.size() || bytes >= static_cast<std::size_t>(layout.width) * kRow) return bytes;

  const FpkHeader header = {static_cast<std::uint8_t>(present),
                            static_cast<std::uint8_t>(code.planes | (code.has_zero ? kFpkZeroCode : 0)), code.base, 0};
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
  const FpkLayout& layout = layout_of(type);
  FpkHeader header;
  if (in.size() < sizeof header) throw_bad_block();
  std::memcpy(&header, in.data(), sizeof header);
  const FpkCode code = {header.planes & ~kFpkZeroCode, header.base, (header.planes & kFpkZeroCode) != 0};
  const unsigned present = header.rest;
  if ((code.is_plain() && code.planes != layout.exponent_bits) || present >> (layout.rest_rows + layout.rest_planes) ||
      (code.has_zero && (code.is_plain() || code.planes == 0)) || header.unused)
    throw_bad_block();
  const std::size_t code_bytes = static_cast<std::size_t>(code.planes) * kPlaneBytes;
  const std::size_t before = sizeof header + code_bytes + layout.rest_bytes(present);
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
