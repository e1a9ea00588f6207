#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/types.hpp"

namespace accdp {

/// Numbers on the wire; a number is never used again for something else.
enum class CodecId : std::uint8_t {
  kNone = 0,
  kFpk = 1,
  kBitcomp = 2,
  kAns = 3,
  kLz4 = 4,
  kQpk = 5,
  kBitcompLossy = 6,
  kZhuff = 7,
  kZstd = 8,
  kQhuff = 9,
};

/// Sets of codecs are words with a bit per number.
constexpr std::uint32_t bit_of(CodecId id) noexcept { return std::uint32_t{1} << static_cast<unsigned>(id); }
constexpr bool is_in(std::uint32_t set, CodecId id) noexcept { return set & bit_of(id); }

/// What an encoder has to know besides the bytes.
struct Encoding {
  Datatype type;
  double bound = 0;  ///< of lossy codecs: |x - x'| <= bound for every finite x; finite, > 0
};

/// One way to make a chunk of one datatype smaller. Chunks are independent of each other: no state lasts
/// from one call to the next but scratch memory, so any thread may call.
struct CodecRow {
  CodecId id;
  const char* name;       ///< as users write it
  std::uint8_t format;    ///< version of the byte format; streams of another are refused
  const char* datatypes;  ///< for people
  const char* exactness;  ///< for people: "exact", "|x - x'| <= bound; NaN and infinities exact"
  const char* home;       ///< for people: whose code it is
  bool lossy;
  bool (*takes)(Datatype) noexcept;

  /// Why it does not work in this process, with what to do about it; empty where it does.
  std::string (*why_not)();
  /// Major version of the library whose format this is, 0 for own formats; needs why_not() to be empty.
  std::uint8_t (*library_major)();
  /// Writes the encoded chunk to `out`, whose size is at least that of `in`; returns its bytes, or 0 where it would
  /// not be smaller than `in`: the caller then sends the chunk as it is. `in` holds whole elements, any alignment.
  std::size_t (*encode)(const Encoding& how, ConstBytes in, Bytes out);
  /// Fills all of `out`. Throws CodecError on any stream that is not one for `out.size()` bytes of this datatype,
  /// as far as the format shows it; never reads outside `in` nor writes outside `out`. Libraries whose decoders
  /// cannot promise that are guarded by the checksums of the frames (frame.hpp).
  void (*decode)(Datatype type, ConstBytes in, Bytes out);
  /// Lossy codecs, or null: makes of a chunk in place what its receiver would get, for less than decode() costs. Where
  /// encode() returns 0, the receiver gets the chunk itself.
  void (*round)(const Encoding& how, Bytes chunk) = nullptr;
  /// Its decoder may crash on a chunk that somebody made wrong on purpose, with right checksums: such a codec is
  /// encoded and decoded only where the caller names it.
  bool trusts_input = false;
  /// Only devices encode and decode it, and it is used only where the caller names it: what stands in for it where a
  /// rank of the call cannot. Its encode() finds nothing that becomes smaller, its decode() throws. Else null.
  const CodecRow* stand_in = nullptr;
};

/// All rows but kNone, in the order of their numbers.
std::span<const CodecRow* const> codec_rows() noexcept;
std::uint32_t codecs_of_auto() noexcept;          ///< that nobody has to name (bit_of)
const CodecRow* find_codec(CodecId id) noexcept;  ///< nullptr: no such row in this build
/// As the row's own, and what ACCDP_CODECS_OFF says. Throws UsageError where that has a name of no codec.
std::string why_not_here(const CodecRow& codec);
/// Throws UsageError listing the names there are.
const CodecRow& codec_named(const std::string& name);

}  // namespace accdp
