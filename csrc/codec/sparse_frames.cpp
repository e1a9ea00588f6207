#include "codec/sparse_frames.hpp"

#include <algorithm>
#include <cstdint>

#include "codec/scratch.hpp"
#include "codec/zstd_api.hpp"

namespace accdp {
namespace {

constexpr std::size_t kHeadBytes = 9;

void put_u32(std::byte* at, std::size_t value) {
  for (int i = 0; i < 4; ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}
std::size_t get_u32(const std::byte* at) {
  std::size_t value = 0;
  for (int i = 0; i < 4; ++i) value |= static_cast<std::size_t>(at[i]) << (8 * i);
  return value;
}

}  // namespace

std::size_t pack_sparse(std::byte usual, const Exceptions& exceptions, Bytes out) {
  if (exceptions.values.empty() || out.size() <= kHeadBytes) return 0;
  const Bytes room = out.subspan(kHeadBytes);
  const std::size_t first = zstd::compress(zstd::Effort::kHuffman, exceptions.distances, room);
  if (first == 0) return 0;
  const std::size_t second = zstd::compress(zstd::Effort::kHuffman, exceptions.values, room.subspan(first));
  if (second == 0) return 0;
  out[0] = usual;
  put_u32(out.data() + 1, exceptions.distances.size());
  put_u32(out.data() + 5, first);
  return kHeadBytes + first + second;
}

bool decode_packed_sparse(ConstBytes in, Bytes out) {
  if (in.size() < kHeadBytes) return false;
  const std::size_t count = get_u32(in.data() + 1), first = get_u32(in.data() + 5);
  // More distances than bytes to fill there cannot be, which also bounds the memory below.
  if (count == 0 || count > out.size() || first > in.size() - kHeadBytes) return false;
  thread_local Scratch scratch;
  const Bytes distances(scratch.at_least(2 * count), count);
  if (!zstd::decompress(in.subspan(kHeadBytes, first), distances)) return false;
  const auto near = count - static_cast<std::size_t>(std::count(distances.begin(), distances.end(), kFar));
  const Bytes values(distances.data() + count, near);
  if (!zstd::decompress(in.subspan(kHeadBytes + first), values)) return false;
  return fill_in(in[0], {distances, values}, out);
}

}  // namespace accdp
