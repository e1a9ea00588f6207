#include "codec/sparse_plane.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace accdp {
namespace {

constexpr std::size_t kFarBytes = static_cast<std::size_t>(kFar);
constexpr std::size_t kBlock = 64, kBlocks = 64;  // a bit for each byte of a block; so many blocks at once

/// A bit for each byte of these blocks: whether it is not the usual one.
void mark_plain(std::byte usual, const std::byte* in, std::size_t blocks, std::uint64_t* marks) {
  const std::uint64_t usual_word = 0x0101010101010101u * static_cast<std::uint64_t>(usual);
  for (std::size_t b = 0; b < blocks; ++b, in += kBlock) {
    std::uint64_t mark = 0;
    for (std::size_t i = 0; i < kBlock; i += 8) {
      std::uint64_t word;
      std::memcpy(&word, in + i, 8);
      if (word == usual_word) continue;
      for (std::size_t k = i; k < i + 8; ++k) mark |= std::uint64_t{in[k] != usual} << k;
    }
    marks[b] = mark;
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void mark_avx2(std::byte usual, const std::byte* in, std::size_t blocks,
                                               std::uint64_t* marks) {
  const __m256i usual_bytes = _mm256_set1_epi8(static_cast<char>(usual));
  const auto* words = reinterpret_cast<const __m256i*>(in);
  for (std::size_t b = 0; b < blocks; ++b, words += 2) {
    const __m256i low = _mm256_cmpeq_epi8(_mm256_loadu_si256(words), usual_bytes);
    const __m256i high = _mm256_cmpeq_epi8(_mm256_loadu_si256(words + 1), usual_bytes);
    const auto same_low = static_cast<std::uint32_t>(_mm256_movemask_epi8(low));
    const auto same_high = static_cast<std::uint32_t>(_mm256_movemask_epi8(high));
    marks[b] = ~(std::uint64_t{same_high} << 32 | same_low);
  }
}
const auto mark = __builtin_cpu_supports("avx2") ? mark_avx2 : mark_plain;
#else
const auto mark = mark_plain;
#endif

}  // namespace

Exceptions find_exceptions(std::byte usual, ConstBytes in, std::byte* room) {
  // A distance with its value stands for one byte at least, one without for 255: neither list outgrows its half.
  std::byte *distance = room, *const values = room + in.size(), *value = values;
  std::size_t done = 0;
  const auto found = [&](std::size_t at) {
    std::size_t gap = at - done;
    for (; gap >= kFarBytes; gap -= kFarBytes) *distance++ = kFar;
    *distance++ = static_cast<std::byte>(gap);
    *value++ = in[at];
    done = at + 1;
  };
  std::uint64_t marks[kBlocks];
  std::size_t at = 0;
  while (const std::size_t blocks = std::min((in.size() - at) / kBlock, kBlocks)) {
    mark(usual, in.data() + at, blocks, marks);
    for (std::size_t b = 0; b < blocks; ++b, at += kBlock)
      for (std::uint64_t left = marks[b]; left; left &= left - 1)
        found(at + static_cast<std::size_t>(std::countr_zero(left)));
  }
  for (; at < in.size(); ++at)
    if (in[at] != usual) found(at);
  return {ConstBytes(room, distance), ConstBytes(values, value)};
}

bool fill_in(std::byte usual, const Exceptions& exceptions, Bytes out) {
  if (!out.empty()) std::memset(out.data(), static_cast<int>(usual), out.size());
  const std::byte* value = exceptions.values.data();
  std::size_t at = 0;
  for (const std::byte distance : exceptions.distances) {
    at += static_cast<std::size_t>(distance);
    if (distance == kFar) continue;
    if (at >= out.size()) return false;
    out[at++] = *value++;
  }
  return at <= out.size();
}

void write_sparse(std::byte usual, const Exceptions& exceptions, std::byte* out) {
  *out++ = usual;
  const std::byte* value = exceptions.values.data();
  for (const std::byte distance : exceptions.distances) {
    *out++ = distance;
    if (distance != kFar) *out++ = *value++;
  }
}

bool decode_sparse(ConstBytes in, Bytes out) {
  if (in.empty()) return false;
  std::memset(out.data(), static_cast<int>(in[0]), out.size());
  std::size_t at = 0;
  for (std::size_t read = 1; read < in.size(); ++read) {
    const std::size_t gap = static_cast<std::size_t>(in[read]);
    if (gap > out.size() - at) return false;
    at += gap;
    if (in[read] == kFar) continue;
    if (at == out.size() || ++read == in.size()) return false;
    out[at++] = in[read];
  }
  return true;
}

}  // namespace accdp
