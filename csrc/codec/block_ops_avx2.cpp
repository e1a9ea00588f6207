#if defined(__x86_64__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "codec/block_ops.hpp"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c,bmi,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c,bmi,popcnt")
#endif
#define ACCDP_ISA avx2
#include "codec/block_loops.hpp"

namespace accdp {
namespace avx2 {
namespace {

using Lanes = __m256i;

Lanes load(const void* from) { return _mm256_loadu_si256(static_cast<const Lanes*>(from)); }
void store(void* to, Lanes lanes) { _mm256_storeu_si256(static_cast<Lanes*>(to), lanes); }
__m128i load_half(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
void store_half(void* to, __m128i lanes) { _mm_storeu_si128(static_cast<__m128i*>(to), lanes); }

// The unpack and pack instructions stay within 128-bit halves; these undo what that does to the order.
Lanes alternate_quads(Lanes lanes) { return _mm256_permute4x64_epi64(lanes, _MM_SHUFFLE(3, 1, 2, 0)); }
Lanes alternate_words(Lanes lanes) {
  return _mm256_permutevar8x32_epi32(lanes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

void split2(const std::byte* in, std::size_t count, std::uint8_t* rows) {
  const Lanes low_bytes = _mm256_set1_epi16(0xff);
  for (std::size_t i = 0; i < count; i += 32) {
    const Lanes a = load(in + 2 * i), b = load(in + 2 * i + 32);
    const Lanes low = _mm256_packus_epi16(_mm256_and_si256(a, low_bytes), _mm256_and_si256(b, low_bytes));
    const Lanes high = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
    store(rows + i, alternate_quads(low));
    store(rows + kRow + i, alternate_quads(high));
  }
}

void split4(const std::byte* in, std::size_t count, std::uint8_t* rows) {
  const Lanes by_byte = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,  //
                                         0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (std::size_t i = 0; i < count; i += 32) {
    Lanes part[4];
    for (int p = 0; p < 4; ++p) part[p] = _mm256_shuffle_epi8(load(in + 4 * i + 32 * p), by_byte);
    const Lanes a = _mm256_unpacklo_epi32(part[0], part[1]), b = _mm256_unpacklo_epi32(part[2], part[3]);
    const Lanes c = _mm256_unpackhi_epi32(part[0], part[1]), d = _mm256_unpackhi_epi32(part[2], part[3]);
    store(rows + i, alternate_words(_mm256_unpacklo_epi64(a, b)));
    store(rows + kRow + i, alternate_words(_mm256_unpackhi_epi64(a, b)));
    store(rows + 2 * kRow + i, alternate_words(_mm256_unpacklo_epi64(c, d)));
    store(rows + 3 * kRow + i, alternate_words(_mm256_unpackhi_epi64(c, d)));
  }
}

void split(const std::byte* in, int width, std::size_t count, std::uint8_t* rows) {
  width == 2 ? split2(in, count, rows) : split4(in, count, rows);
}

void merge2(const std::uint8_t* rows, std::size_t count, std::byte* out) {
  for (std::size_t i = 0; i < count; i += 32) {
    const Lanes low = alternate_quads(load(rows + i)), high = alternate_quads(load(rows + kRow + i));
    store(out + 2 * i, _mm256_unpacklo_epi8(low, high));
    store(out + 2 * i + 32, _mm256_unpackhi_epi8(low, high));
  }
}

/// Elements first .. first + 3 stand in the lower half, 16 elements further in the upper one.
void store_apart(std::byte* out, std::size_t first, Lanes lanes) {
  store_half(out + 4 * first, _mm256_castsi256_si128(lanes));
  store_half(out + 4 * first + 64, _mm256_extracti128_si256(lanes, 1));
}

void merge4(const std::uint8_t* rows, std::size_t count, std::byte* out) {
  for (std::size_t i = 0; i < count; i += 32) {
    const Lanes r0 = load(rows + i), r1 = load(rows + kRow + i);
    const Lanes r2 = load(rows + 2 * kRow + i), r3 = load(rows + 3 * kRow + i);
    const Lanes a = _mm256_unpacklo_epi8(r0, r1), b = _mm256_unpacklo_epi8(r2, r3);
    const Lanes c = _mm256_unpackhi_epi8(r0, r1), d = _mm256_unpackhi_epi8(r2, r3);
    store_apart(out, i, _mm256_unpacklo_epi16(a, b));
    store_apart(out, i + 4, _mm256_unpackhi_epi16(a, b));
    store_apart(out, i + 8, _mm256_unpacklo_epi16(c, d));
    store_apart(out, i + 12, _mm256_unpackhi_epi16(c, d));
  }
}

void merge(const std::uint8_t* rows, int width, std::size_t count, std::byte* out) {
  width == 2 ? merge2(rows, count, out) : merge4(rows, count, out);
}

// From the highest plane down: doubling a byte brings its next bit to the place that movemask reads.
void pack(const std::uint8_t* row, std::size_t count, int planes, std::byte* out) {
  const __m128i to_top = _mm_cvtsi32_si128(8 - planes);
  for (std::size_t i = 0; i < count; i += 32) {
    // bits that cross into the neighbour byte land below the planes that are read
    Lanes bytes = _mm256_sll_epi16(load(row + i), to_top);
    for (int b = planes - 1; b >= 0; --b) {
      const int word = _mm256_movemask_epi8(bytes);
      __builtin_memcpy(out + static_cast<std::size_t>(b) * count / 8 + i / 8, &word, 4);
      bytes = _mm256_add_epi8(bytes, bytes);
    }
  }
}

/// 0xff in byte i where bit i of the word is set.
Lanes spread(const std::byte* word) {
  const Lanes own_byte = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,  //
                                          2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const Lanes own_bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  int bits;
  __builtin_memcpy(&bits, word, 4);
  const Lanes bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), own_byte);
  return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, own_bit), own_bit);
}

void unpack(const std::byte* in, std::size_t count, int planes, std::uint8_t* row) {
  for (std::size_t i = 0; i < count; i += 32) {
    Lanes bytes = _mm256_setzero_si256();
    for (int b = planes - 1; b >= 0; --b) {
      const Lanes set = spread(in + static_cast<std::size_t>(b) * count / 8 + i / 8);
      bytes = _mm256_sub_epi8(_mm256_add_epi8(bytes, bytes), set);
    }
    store(row + i, bytes);
  }
}

/// The sums of the bytes of four counters, each < 2^16.
void store_sums(const Lanes* counters, std::uint16_t* sums) {
  Lanes together = _mm256_setzero_si256();
  for (int c = 3; c >= 0; --c) {
    const Lanes sum = _mm256_sad_epu8(counters[c], _mm256_setzero_si256());
    together = _mm256_or_si256(_mm256_slli_epi64(together, 16), sum);
  }
  const __m128i half = _mm_add_epi16(_mm256_castsi256_si128(together), _mm256_extracti128_si256(together, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(sums), _mm_add_epi16(half, _mm_unpackhi_epi64(half, half)));
}

// Two counters of 4 bits share a byte: kLow[c] counts codes in the lower half, kHigh[c] in the upper one. A table
// look-up by code then serves both.
constexpr int kPairs = 6;
constexpr int kLow[kPairs] = {1, 2, 3, 4, 9, 10}, kHigh[kPairs] = {5, 6, 7, 8, 14, 15};
struct CountTable {
  alignas(16) std::uint8_t adds[kPairs][16];
};
constexpr CountTable kCountTable = [] {
  CountTable table{};
  for (int c = 0; c < kPairs; ++c)
    for (int code = 0; code < 16; ++code)
      table.adds[c][code] = static_cast<std::uint8_t>((code >= kLow[c]) | (code >= kHigh[c]) << 4);
  return table;
}();

void count_codes(const std::uint8_t* row, std::uint8_t largest, CodeCounts& counts) {
  const Lanes most = _mm256_set1_epi8(static_cast<char>(largest)), fifteen = _mm256_set1_epi8(15);
  Lanes adds[kPairs], low[kPairs] = {}, high[kPairs] = {}, zeros[4] = {};
  for (int c = 0; c < kPairs; ++c) adds[c] = _mm256_broadcastsi128_si256(load_half(kCountTable.adds[c]));
  for (std::size_t half = 0; half < kRow; half += kRow / 2) {  // 8 counts fit into 4 bits, 16 would not
    Lanes pair[kPairs] = {};
    for (std::size_t i = half; i < half + kRow / 2; i += 32) {
      const Lanes values = load(row + i);
      zeros[0] = _mm256_sub_epi8(zeros[0], _mm256_cmpeq_epi8(values, _mm256_setzero_si256()));
      const Lanes code = _mm256_min_epu8(_mm256_sub_epi8(most, values), fifteen);
      for (int c = 0; c < kPairs; ++c) pair[c] = _mm256_add_epi8(pair[c], _mm256_shuffle_epi8(adds[c], code));
    }
    for (int c = 0; c < kPairs; ++c) {
      low[c] = _mm256_add_epi8(low[c], _mm256_and_si256(pair[c], fifteen));
      high[c] = _mm256_add_epi8(high[c], _mm256_and_si256(_mm256_srli_epi16(pair[c], 4), fifteen));
    }
  }
  const Lanes others[4] = {low[4], low[5], high[4], high[5]};
  std::uint16_t sums[4];
  store_sums(zeros, sums);
  counts.zeros = sums[0];
  counts.at_least[0] = kRow;
  store_sums(low, counts.at_least + 1);
  store_sums(high, counts.at_least + 5);
  store_sums(others, sums);
  counts.at_least[9] = sums[0];
  counts.at_least[10] = sums[1];
  counts.at_least[14] = sums[2];
  counts.at_least[15] = sums[3];
}

__m256 load_floats(Datatype type, const std::byte* in, std::size_t i) {
  if (type == Datatype::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(in + 4 * i));
  const __m128i bits = load_half(in + 2 * i);
  if (type == Datatype::kF16) return _mm256_cvtph_ps(bits);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

template <Datatype type>
int quantise_as(const std::byte* in, float inverse, float limit, std::uint8_t* rows) {
  const __m256 scale = _mm256_set1_ps(inverse), most = _mm256_set1_ps(limit);
  const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const Lanes low_bytes = _mm256_set1_epi16(0xff);
  __m256 fits = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
  Lanes bits = _mm256_setzero_si256();
  for (std::size_t i = 0; i < 256; i += 32) {
    Lanes number[4];
    for (std::size_t p = 0; p < 4; ++p) {
      const __m256 scaled = _mm256_mul_ps(load_floats(type, in, i + 8 * p), scale);
      fits = _mm256_and_ps(fits, _mm256_cmp_ps(_mm256_and_ps(scaled, no_sign), most, _CMP_LE_OQ));
      number[p] = _mm256_cvtps_epi32(scaled);
    }
    Lanes zigzag[2];
    for (int p = 0; p < 2; ++p) {
      const Lanes narrow = _mm256_packs_epi32(number[2 * p], number[2 * p + 1]);
      zigzag[p] = _mm256_xor_si256(_mm256_slli_epi16(narrow, 1), _mm256_srai_epi16(narrow, 15));
      bits = _mm256_or_si256(bits, zigzag[p]);
    }
    const Lanes low =
        _mm256_packus_epi16(_mm256_and_si256(zigzag[0], low_bytes), _mm256_and_si256(zigzag[1], low_bytes));
    const Lanes high = _mm256_packus_epi16(_mm256_srli_epi16(zigzag[0], 8), _mm256_srli_epi16(zigzag[1], 8));
    store(rows + i, alternate_words(low));
    store(rows + kRow + i, alternate_words(high));
  }
  if (_mm256_movemask_ps(fits) != 0xff) return -1;
  alignas(32) std::uint16_t each[16];
  store(each, bits);
  std::uint32_t together = 0;
  for (std::uint16_t one : each) together |= one;
  return together ? 32 - __builtin_clz(together) : 0;
}

int quantise(Datatype type, const std::byte* in, float inverse, float limit, std::uint8_t* rows) {
  switch (type) {
    case Datatype::kF32: return quantise_as<Datatype::kF32>(in, inverse, limit, rows);
    case Datatype::kBF16: return quantise_as<Datatype::kBF16>(in, inverse, limit, rows);
    default: return quantise_as<Datatype::kF16>(in, inverse, limit, rows);
  }
}

Lanes to_bfloat16(__m256 values) {  // in the lower halves of 32 bits; to nearest, ties to even; never a NaN here
  const Lanes bits = _mm256_castps_si256(values);
  const Lanes odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
}

template <Datatype type>
void dequantise_as(const std::uint8_t* rows, float delta, std::byte* out) {
  const __m256 step = _mm256_set1_ps(delta);
  for (std::size_t i = 0; i < 256; i += 16) {
    const Lanes low = _mm256_cvtepu8_epi16(load_half(rows + i));
    const Lanes high = _mm256_cvtepu8_epi16(load_half(rows + kRow + i));
    const Lanes zigzag = _mm256_or_si256(low, _mm256_slli_epi16(high, 8));
    const Lanes sign = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_and_si256(zigzag, _mm256_set1_epi16(1)));
    const Lanes number = _mm256_xor_si256(_mm256_srli_epi16(zigzag, 1), sign);
    const Lanes first = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(number));
    const Lanes second = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(number, 1));
    const __m256 a = _mm256_mul_ps(_mm256_cvtepi32_ps(first), step);
    const __m256 b = _mm256_mul_ps(_mm256_cvtepi32_ps(second), step);
    if constexpr (type == Datatype::kF32) {
      store(out + 4 * i, _mm256_castps_si256(a));
      store(out + 4 * i + 32, _mm256_castps_si256(b));
    } else if constexpr (type == Datatype::kBF16) {
      store(out + 2 * i, alternate_quads(_mm256_packus_epi32(to_bfloat16(a), to_bfloat16(b))));
    } else {
      store_half(out + 2 * i, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
      store_half(out + 2 * i + 16, _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
    }
  }
}

void dequantise(Datatype type, const std::uint8_t* rows, float delta, std::byte* out) {
  switch (type) {
    case Datatype::kF32: return dequantise_as<Datatype::kF32>(rows, delta, out);
    case Datatype::kBF16: return dequantise_as<Datatype::kBF16>(rows, delta, out);
    default: return dequantise_as<Datatype::kF16>(rows, delta, out);
  }
}

}  // namespace
}  // namespace avx2

extern const BlockOps kBlockOpsAvx2;
constexpr BlockOps kBlockOpsAvx2 = {
    avx2::split,          avx2::merge,      avx2::pack,          avx2::unpack,  avx2::list_ones, avx2::part_exponents,
    avx2::join_exponents, avx2::part_half,  avx2::join_half,     avx2::largest, avx2::any,       avx2::count_codes,
    avx2::make_codes,     avx2::from_codes, avx2::choose_planes, avx2::clip,    avx2::quantise,  avx2::dequantise,
};

}  // namespace accdp
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
