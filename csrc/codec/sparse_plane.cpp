#include "codec/sparse_plane.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

namespace accdp {
namespace {

constexpr std::size_t kFar = 255;  // distance without an exception behind it

/// First index from `at` on whose byte differs from `usual`, or in.size().
std::size_t next_exception(std::byte usual, ConstBytes in, std::size_t at) {
  const std::uint64_t usual_word = 0x0101010101010101u * static_cast<std::uint64_t>(usual);
  for (; at + 8 <= in.size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, in.data() + at, 8);
    if (word == usual_word) continue;
    if constexpr (std::endian::native == std::endian::little)
      return at + static_cast<std::size_t>(std::countr_zero(word ^ usual_word)) / 8;
    break;
  }
  while (at < in.size() && in[at] == usual) ++at;
  return at;
}

}  // namespace

std::size_t encode_sparse(std::byte usual, ConstBytes in, Bytes out) {
  if (out.empty()) return 0;
  out[0] = usual;
  std::size_t used = 1, done = 0;
  for (std::size_t at; (at = next_exception(usual, in, done)) < in.size(); done = at + 1) {
    const std::size_t gap = at - done;
    if (out.size() - used < gap / kFar + 2) return 0;
    std::memset(out.data() + used, static_cast<int>(kFar), gap / kFar);
    used += gap / kFar;
    out[used++] = static_cast<std::byte>(gap % kFar);
    out[used++] = in[at];
  }
  return used;
}

bool decode_sparse(ConstBytes in, Bytes out) {
  if (in.empty()) return false;
  std::memset(out.data(), static_cast<int>(in[0]), out.size());
  std::size_t at = 0;
  for (std::size_t read = 1; read < in.size(); ++read) {
    const std::size_t gap = static_cast<std::size_t>(in[read]);
    if (gap > out.size() - at) return false;
    at += gap;
    if (gap == kFar) continue;
    if (at == out.size() || ++read == in.size()) return false;
    out[at++] = in[read];
  }
  return true;
}

}  // namespace accdp
