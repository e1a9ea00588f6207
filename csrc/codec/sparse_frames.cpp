#include "codec/sparse_frames.hpp"

#include <cstdint>
#include <cstring>

#include "codec/scratch.hpp"
#include "codec/sparse_plane.hpp"
#include "codec/zstd_api.hpp"

namespace accdp {
namespace {

constexpr std::byte kFar{255};  // a distance without a value, see sparse_plane.hpp
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

std::size_t pack_sparse(ConstBytes sparse, Bytes out) {
  if (sparse.size() < 2 || out.size() <= kHeadBytes) return 0;
  thread_local Scratch scratch;
  std::byte* const distances = scratch.at_least(2 * sparse.size());
  std::byte* const values = distances + sparse.size();
  std::size_t far_and_near = 0, near = 0;
  for (std::size_t at = 1; at < sparse.size(); ++at) {
    distances[far_and_near++] = sparse[at];
    if (sparse[at] != kFar) values[near++] = sparse[++at];
  }
  if (near == 0) return 0;
  const std::size_t first = zstd::compress(zstd::Effort::kHuffman, {distances, far_and_near}, out.subspan(kHeadBytes));
  if (first == 0) return 0;
  const std::size_t second = zstd::compress(zstd::Effort::kHuffman, {values, near}, out.subspan(kHeadBytes + first));
  if (second == 0) return 0;
  out[0] = sparse[0];
  put_u32(out.data() + 1, far_and_near);
  put_u32(out.data() + 5, first);
  return kHeadBytes + first + second;
}

bool decode_packed_sparse(ConstBytes in, Bytes out) {
  if (in.size() < kHeadBytes) return false;
  const std::size_t count = get_u32(in.data() + 1), first = get_u32(in.data() + 5);
  // More distances than bytes to fill there cannot be, which also bounds the memory below.
  if (count == 0 || count > out.size() || first > in.size() - kHeadBytes) return false;
  thread_local Scratch scratch;
  std::byte* const distances = scratch.at_least(4 * count + 1);
  std::byte* const values = distances + count;
  std::byte* const sparse = values + count;
  if (!zstd::decompress(in.subspan(kHeadBytes, first), {distances, count})) return false;
  std::size_t near = 0;
  for (std::size_t i = 0; i < count; ++i) near += distances[i] != kFar;
  if (!zstd::decompress(in.subspan(kHeadBytes + first), {values, near})) return false;
  std::size_t used = 0;
  sparse[used++] = in[0];
  for (std::size_t i = 0, value = 0; i < count; ++i) {
    sparse[used++] = distances[i];
    if (distances[i] != kFar) sparse[used++] = values[value++];
  }
  return decode_sparse({sparse, used}, out);
}

}  // namespace accdp
