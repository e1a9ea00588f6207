#include "codec/qhuff.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.hpp"
#include "codec/codec.hpp"
#include "codec/plane_store.hpp"
#include "codec/quantiser.hpp"
#include "codec/scratch.hpp"

namespace accdp {
namespace {

constexpr std::size_t kBlock = Quantiser::kBlock, kHeader = Quantiser::kHeaderBytes;

std::size_t map_bytes(std::size_t blocks) { return (blocks + 7) / 8; }
std::byte bit_of_block(std::size_t block) { return std::byte{1} << (block % 8); }

[[noreturn]] void refuse(const char* what) { throw CodecError(std::string("qhuff: ") + what); }

}  // namespace

std::size_t qhuff_encode(Datatype type, double bound, ConstBytes in, Bytes out, const BlockOps& ops) {
  if (!zstd::why_not().empty()) throw UsageError(zstd::why_not());
  const Quantiser quantiser("qhuff", type, bound, in);
  const std::size_t block_bytes = quantiser.block_bytes(), blocks = in.size() / block_bytes;
  const std::size_t begin = kHeader + map_bytes(blocks);
  if (!quantiser.has_step() || blocks == 0 || begin >= in.size()) return 0;
  quantiser.put_header(out.data());
  std::byte* const map = out.data() + kHeader;
  std::memset(map, 0, map_bytes(blocks));

  thread_local Scratch scratch;
  std::byte* const upper = scratch.at_least(2 * blocks * kBlock);
  std::byte* const lower = upper + blocks * kBlock;
  std::size_t count = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    alignas(64) std::uint8_t rows[2 * kRow];
    if (quantiser.quantise(ops, in.data() + b * block_bytes, rows) < 0) {
      map[b / 8] |= bit_of_block(b);
      continue;
    }
    std::memcpy(lower + count, rows, kBlock);
    std::memcpy(upper + count, rows + kRow, kBlock);
    count += kBlock;
  }
  const std::size_t exact = in.size() - count * element_bytes(type);
  if (count == 0 || begin + exact >= in.size()) return 0;
  const ConstBytes planes[] = {{upper, count}, {lower, count}};
  const Bytes room = out.first(in.size() - 1 - exact).subspan(begin);  // the stream has to be smaller than the chunk
  const std::size_t stored = store_planes(zstd::Effort::kHuffman, planes, room);
  if (stored == 0) return 0;

  std::byte* at = out.data() + begin + stored;
  for (std::size_t b = 0; b < blocks; ++b)
    if ((map[b / 8] & bit_of_block(b)) != std::byte{}) at = std::copy_n(in.data() + b * block_bytes, block_bytes, at);
  std::copy(in.begin() + static_cast<std::ptrdiff_t>(blocks * block_bytes), in.end(), at);
  return begin + stored + exact;
}

void qhuff_decode(Datatype type, ConstBytes in, Bytes out, const BlockOps& ops) {
  if (!zstd::why_not().empty()) throw CodecError(zstd::why_not());
  const Quantiser quantiser("qhuff", type, in);
  const std::size_t block_bytes = quantiser.block_bytes(), blocks = out.size() / block_bytes;
  const std::size_t begin = kHeader + map_bytes(blocks);
  if (in.size() < begin) refuse("ends within its map of blocks");
  const ConstBytes map = in.subspan(kHeader, map_bytes(blocks));
  const auto is_exact = [&](std::size_t b) { return (map[b / 8] & bit_of_block(b)) != std::byte{}; };
  for (std::size_t b = blocks; b < 8 * map.size(); ++b)
    if (is_exact(b)) refuse("its map has blocks that the chunk has not");
  std::size_t count = 0;
  for (std::size_t b = 0; b < blocks; ++b) count += is_exact(b) ? 0 : kBlock;
  if (count == 0) refuse("no block has numbers");

  thread_local Scratch scratch;
  const std::byte* planes[2];
  const std::size_t stored = restore_planes("qhuff", in.subspan(begin), count, scratch.at_least(2 * count), planes);
  ConstBytes rest = in.subspan(begin + stored);
  if (rest.size() != out.size() - count * element_bytes(type)) refuse("of another length than announced");
  const auto take = [&](std::byte* to, std::size_t bytes) {
    std::copy_n(rest.begin(), bytes, to);
    rest = rest.subspan(bytes);
  };
  std::size_t done = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    std::byte* const block = out.data() + b * block_bytes;
    if (is_exact(b)) {
      take(block, block_bytes);
      continue;
    }
    alignas(64) std::uint8_t rows[2 * kRow];
    std::memcpy(rows, planes[1] + done, kBlock);
    std::memcpy(rows + kRow, planes[0] + done, kBlock);
    quantiser.dequantise(ops, rows, block);
    done += kBlock;
  }
  take(out.data() + blocks * block_bytes, rest.size());
}

extern const CodecRow kQhuffRow;
const CodecRow kQhuffRow = {
    .id = CodecId::kQhuff,
    .name = "qhuff",
    .format = 1,
    .datatypes = "float32, bfloat16, float16",
    .exactness = "|x - x'| <= bound; NaN and infinities exact",
    .home = "own planes, libzstd",
    .lossy = true,
    .takes = Quantiser::takes,
    .why_not = [] { return zstd::why_not(); },
    .library_major = []() -> std::uint8_t { return 0; },
    .encode = [](const Encoding& how, ConstBytes in, Bytes out) { return qhuff_encode(how.type, how.bound, in, out); },
    .decode = [](Datatype type, ConstBytes in, Bytes out) { qhuff_decode(type, in, out); },
    .round = [](const Encoding& how,
                Bytes chunk) { Quantiser("qhuff", how.type, how.bound, chunk).round(block_ops(), chunk); },
};

}  // namespace accdp
