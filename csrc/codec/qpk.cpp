#include "codec/qpk.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "codec/block_stream.hpp"
#include "codec/codec.hpp"
#include "codec/quantiser.hpp"

namespace accdp {
namespace {

constexpr std::size_t kPlane = Quantiser::kBlock / 8;

std::size_t encode_block(const BlockOps& ops, const Quantiser& quantiser, const std::byte* block, Bytes room) {
  alignas(64) std::uint8_t rows[2 * kRow];
  const int planes = quantiser.quantise(ops, block, rows);
  if (planes < 0) return quantiser.block_bytes();
  const std::size_t bytes = static_cast<std::size_t>(planes) * kPlane;
  if (bytes > room.size()) return bytes;
  if (planes > 0) ops.pack(rows, Quantiser::kBlock, std::min(planes, 8), room.data());
  if (planes > 8) ops.pack(rows + kRow, Quantiser::kBlock, planes - 8, room.data() + 8 * kPlane);
  return bytes;
}

void decode_block(const BlockOps& ops, const Quantiser& quantiser, ConstBytes in, std::byte* block) {
  const int planes = static_cast<int>(in.size() / kPlane);
  if (in.size() % kPlane != 0 || planes > 16) throw CodecError("qpk: damaged block");
  alignas(64) std::uint8_t rows[2 * kRow];
  ops.unpack(in.data(), Quantiser::kBlock, std::min(planes, 8), rows);
  if (planes > 8)
    ops.unpack(in.data() + 8 * kPlane, Quantiser::kBlock, planes - 8, rows + kRow);
  else
    std::memset(rows + kRow, 0, Quantiser::kBlock);
  quantiser.dequantise(ops, rows, block);
}

}  // namespace

std::size_t qpk_encode(Datatype type, double bound, ConstBytes in, Bytes out, const BlockOps& ops) {
  const Quantiser quantiser("qpk", type, bound, in);
  constexpr std::size_t kHeader = Quantiser::kHeaderBytes;
  if (!quantiser.has_step() || in.size() <= kHeader) return 0;
  quantiser.put_header(out.data());
  const Bytes room = out.first(in.size() - 1).subspan(kHeader);
  const std::size_t bytes = encode_blocks(in, quantiser.block_bytes(), room, [&](const std::byte* block, Bytes left) {
    return encode_block(ops, quantiser, block, left);
  });
  return bytes == 0 ? 0 : kHeader + bytes;
}

void qpk_decode(Datatype type, ConstBytes in, Bytes out, const BlockOps& ops) {
  const Quantiser quantiser("qpk", type, in);
  decode_blocks(in.subspan(Quantiser::kHeaderBytes), quantiser.block_bytes(), out,
                [&](ConstBytes encoded, std::byte* block) { decode_block(ops, quantiser, encoded, block); });
}

extern const CodecRow kQpkRow;
const CodecRow kQpkRow = {
    .id = CodecId::kQpk,
    .name = "qpk",
    .format = 1,
    .datatypes = "float32, bfloat16, float16",
    .exactness = "|x - x'| <= bound; NaN and infinities exact",
    .home = "own",
    .lossy = true,
    .takes = Quantiser::takes,
    .why_not = [] { return std::string(); },
    .library_major = []() -> std::uint8_t { return 0; },
    .encode = [](const Encoding& how, ConstBytes in, Bytes out) { return qpk_encode(how.type, how.bound, in, out); },
    .decode = [](Datatype type, ConstBytes in, Bytes out) { qpk_decode(type, in, out); },
    .round = [](const Encoding& how,
                Bytes chunk) { Quantiser("qpk", how.type, how.bound, chunk).round(block_ops(), chunk); },
};

}  // namespace accdp
