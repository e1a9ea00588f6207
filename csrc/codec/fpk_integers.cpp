// A block of unsigned integers, most of them small: the differences that delta.hpp makes. After the header come bit
// planes for the values below an escape of all ones, then the larger values as they are.
#include <algorithm>

#include "codec/fpk_blocks.hpp"

namespace accdp {
namespace {

constexpr std::uint8_t kHasEscapes = 1;  // in FpkHeader::rest; without it all ones is a value like the others

template <class T>
std::size_t encode(const BlockOps& ops, const std::byte* block, Bytes room) {
  alignas(64) T values[kRow];
  std::memcpy(values, block, sizeof values);
  const auto [planes, escapes] = ops.choose_planes(values, sizeof(T));
  const std::size_t plane_bytes = static_cast<std::size_t>(planes) * kPlaneBytes;
  const std::size_t bytes = sizeof(FpkHeader) + plane_bytes + padded(escapes * sizeof(T));
  if (bytes > room.size() || bytes >= sizeof values) return bytes;

  const FpkHeader header = {escapes ? kHasEscapes : std::uint8_t{0}, static_cast<std::uint8_t>(planes), 0, 0};
  std::memcpy(room.data(), &header, sizeof header);
  std::byte* to = room.data() + sizeof header;
  alignas(64) T codes[kRow];
  alignas(64) std::uint8_t rows[sizeof(T) * kRow];
  ops.clip(values, sizeof(T), planes, codes);
  ops.split(reinterpret_cast<const std::byte*>(codes), sizeof(T), kRow, rows);
  for (int first = 0; first < planes; first += 8)
    ops.pack(rows + static_cast<std::size_t>(first / 8) * kRow, kRow, std::min(8, planes - first),
             to + static_cast<std::size_t>(first) * kPlaneBytes);
  if (escapes > 0) {
    std::memset(room.data() + bytes - 4, 0, 4);  // the padding
    Escapes places;
    places.find(ops, to, planes);
    places.gather(values, to + plane_bytes);
  }
  return bytes;
}

template <class T>
void decode(const BlockOps& ops, ConstBytes in, std::byte* block) {
  FpkHeader header;
  if (in.size() < sizeof header) throw_bad_block();
  std::memcpy(&header, in.data(), sizeof header);
  const int planes = header.planes;
  const std::size_t plane_bytes = static_cast<std::size_t>(planes) * kPlaneBytes;
  const std::size_t before = sizeof header + plane_bytes;
  if (header.rest > kHasEscapes || header.base || header.unused || planes == 0 ||
      planes > static_cast<int>(8 * sizeof(T)) || before > in.size())
    throw_bad_block();
  const std::byte* from = in.data() + sizeof header;
  Escapes escapes;
  if (header.rest) escapes.find(ops, from, planes);
  if (padded(escapes.count * sizeof(T)) != in.size() - before) throw_bad_block();

  alignas(64) std::uint8_t rows[sizeof(T) * kRow];
  for (int first = 0; first < static_cast<int>(8 * sizeof(T)); first += 8)
    ops.unpack(from + static_cast<std::size_t>(std::min(first, planes)) * kPlaneBytes, kRow,
               std::clamp(planes - first, 0, 8), rows + static_cast<std::size_t>(first / 8) * kRow);
  alignas(64) T values[kRow];
  ops.merge(rows, sizeof(T), kRow, reinterpret_cast<std::byte*>(values));
  escapes.scatter(in.data() + before, values);
  std::memcpy(block, values, sizeof values);
}

}  // namespace

std::size_t fpk_encode_integers(const BlockOps& ops, int width, const std::byte* block, Bytes room) {
  return width == 2 ? encode<std::uint16_t>(ops, block, room) : encode<std::uint32_t>(ops, block, room);
}

void fpk_decode_integers(const BlockOps& ops, int width, ConstBytes in, std::byte* block) {
  width == 2 ? decode<std::uint16_t>(ops, in, block) : decode<std::uint32_t>(ops, in, block);
}

}  // namespace accdp
