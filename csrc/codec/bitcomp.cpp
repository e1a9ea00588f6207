// bitcomp and bitcomp_lossy: nvCOMP's native Bitcomp streams, the same that its GPU code reads and writes. A stream
// says its own size, the raw size, the word type and the mode; everything behind that header is trusted by nvCOMP's
// decoder, which crashes or returns garbage on damage. Only the checksums of the frames guard against it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.hpp"
#include "base/handle.hpp"
#include "codec/bitcomp.hpp"
#include "codec/codec.hpp"
#include "codec/nvcomp_api.hpp"
#include "codec/scratch.hpp"

namespace accdp {
namespace {

using nvcomp::Mode;
using nvcomp::Word;

constexpr std::size_t kHeaderBytes = 32;  // of a stream
constexpr std::size_t kAlignment = 8;     // nvCOMP asks it for streams, and more than any word needs
constexpr int kDefaultAlgorithm = 0;

struct PlanTraits {
  using Raw = nvcomp::Bitcomp::Plan;
  static Raw none() noexcept { return nullptr; }
  static void close(Raw plan) noexcept { nvcomp::bitcomp().destroy_plan(plan); }
};

/// Made for each chunk: that takes 0.02 us, and a plan must not be shared between threads.
Handle<PlanTraits> make_plan(std::size_t raw_bytes, Word word, Mode mode) {
  nvcomp::Bitcomp::Plan plan = nullptr;
  if (int code = nvcomp::bitcomp().create_plan(&plan, raw_bytes, word, mode, kDefaultAlgorithm))
    throw CodecError("bitcompCreatePlan failed with code " + std::to_string(code));
  return Handle<PlanTraits>(plan);
}

Word lossy_word(Datatype type) { return type == Datatype::kF64 ? Word::kF64 : Word::kF32; }

bool is_aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % kAlignment == 0; }

/// `bytes` themselves where they are aligned, else their copy.
const std::byte* aligned(ConstBytes bytes, Scratch& scratch) {
  if (is_aligned(bytes.data())) return bytes.data();
  std::byte* copy = scratch.at_least(bytes.size());
  std::memcpy(copy, bytes.data(), bytes.size());
  return copy;
}

/// Runs `compress(plan, in, stream)` on aligned memory. A stream can be larger than its input, `out` cannot.
template <class Compress>
std::size_t encode(Word word, Mode mode, ConstBytes in, Bytes out, Compress compress) {
  const nvcomp::Bitcomp& api = nvcomp::bitcomp();
  if (in.size() <= kHeaderBytes) return 0;
  thread_local Scratch copy, stream_room;
  const std::byte* input = aligned(in, copy);
  std::byte* stream = stream_room.at_least(api.max_bytes(in.size()));
  const auto plan = make_plan(in.size(), word, mode);
  std::size_t bytes = 0;
  int code = compress(plan.get(), input, stream);
  if (code == 0) code = api.compressed_bytes(stream, &bytes);
  if (code != 0) throw CodecError("Bitcomp could not compress: code " + std::to_string(code));
  if (bytes >= in.size() || bytes > out.size()) return 0;
  std::memcpy(out.data(), stream, bytes);
  return bytes;
}

std::size_t encode_lossless(const Encoding& how, ConstBytes in, Bytes out) {
  const nvcomp::Bitcomp& api = nvcomp::bitcomp();
  if (!api.why_not.empty()) throw UsageError(api.why_not);
  return encode(bitcomp_word(how.type), Mode::kLossless, in, out, api.compress_lossless);
}

/// The quantum for a bound, 0 where none does any good. Bitcomp rounds to the nearest multiple of a power of two, so
/// that is what it is given. Quanta below the smallest normal number leave the data as it is. Above the last place
/// of the largest number the rounding could overflow to infinity.
template <class Real>
Real quantum(double bound) {
  using Limits = std::numeric_limits<Real>;
  int exponent;
  std::frexp(bound, &exponent);  // bound is at least 2^(exponent - 1), the quantum twice that
  if (exponent < Limits::min_exponent - 1) return 0;
  return std::ldexp(Real{1}, std::min(exponent, Limits::max_exponent - Limits::digits));
}

std::size_t encode_lossy(const Encoding& how, ConstBytes in, Bytes out) {
  const nvcomp::Bitcomp& api = nvcomp::bitcomp();
  if (!api.why_not.empty()) throw UsageError(api.why_not);
  if (how.type != Datatype::kF32 && how.type != Datatype::kF64)
    throw UsageError(std::string("codec=bitcomp_lossy is for float32 and float64, not for ") + name_of(how.type));
  if (!(how.bound > 0) || !std::isfinite(how.bound))
    throw UsageError("error bound=" + std::to_string(how.bound) + ": expected a finite number above 0");
  const auto run = [&]<class Real>(Real quantum, int (*compress)(void*, const Real*, void*, Real)) {
    if (quantum == 0) return std::size_t{0};
    return encode(lossy_word(how.type), Mode::kLossy, in, out, [&](void* plan, const void* from, void* to) {
      return compress(plan, static_cast<const Real*>(from), to, quantum);
    });
  };
  return how.type == Datatype::kF64 ? run(quantum<double>(how.bound), api.compress_lossy_f64)
                                    : run(quantum<float>(how.bound), api.compress_lossy_f32);
}

/// The stream itself where it is aligned, else its copy; throws CodecError where its head does not say what is
/// expected.
const std::byte* checked(Word word, Mode mode, ConstBytes in, std::size_t wanted_bytes, Scratch& copy) {
  const nvcomp::Bitcomp& api = nvcomp::bitcomp();
  if (!api.why_not.empty()) throw CodecError(api.why_not);
  if (in.size() < kHeaderBytes || wanted_bytes == 0) throw CodecError("Bitcomp stream is too short, or for no bytes");
  const std::byte* stream = aligned(in, copy);
  std::size_t stream_bytes = in.size(), raw_bytes = 0;
  Word found_word{};
  Mode found_mode{};
  int algorithm = 0;
  if (int code = api.describe(stream, &stream_bytes, &raw_bytes, &found_word, &found_mode, &algorithm))
    throw CodecError("not a Bitcomp stream, or cut off: code " + std::to_string(code));
  if (stream_bytes != in.size() || raw_bytes != wanted_bytes || found_word != word || found_mode != mode)
    throw CodecError("Bitcomp stream is for " + std::to_string(raw_bytes) + " bytes of word type " +
                     std::to_string(static_cast<int>(found_word)) + ", mode " +
                     std::to_string(static_cast<int>(found_mode)) + "; expected " + std::to_string(wanted_bytes) +
                     " bytes of word type " + std::to_string(static_cast<int>(word)) + ", mode " +
                     std::to_string(static_cast<int>(mode)));
  return stream;
}

void decode(Word word, Mode mode, ConstBytes in, Bytes out) {
  thread_local Scratch copy, room;
  const std::byte* stream = checked(word, mode, in, out.size(), copy);
  std::byte* result = is_aligned(out.data()) ? out.data() : room.at_least(out.size());
  const auto plan = make_plan(out.size(), word, mode);
  if (int code = nvcomp::bitcomp().uncompress(plan.get(), stream, result))
    throw CodecError("Bitcomp could not decompress: code " + std::to_string(code));
  if (result != out.data()) std::memcpy(out.data(), result, out.size());
}

void decode_lossless(Datatype type, ConstBytes in, Bytes out) { decode(bitcomp_word(type), Mode::kLossless, in, out); }
void decode_lossy(Datatype type, ConstBytes in, Bytes out) { decode(lossy_word(type), Mode::kLossy, in, out); }

std::string why_not() { return nvcomp::bitcomp().why_not; }
std::uint8_t library_major() { return nvcomp::kMajor; }

constexpr std::uint8_t kFormat = 1;
constexpr const char* kHome = "nvCOMP";

}  // namespace

Word bitcomp_word(Datatype type) {
  switch (type) {
    case Datatype::kI8: return Word::kI8;
    case Datatype::kI16: return Word::kI16;
    case Datatype::kI32: return Word::kI32;
    case Datatype::kI64: return Word::kI64;
    default: break;
  }
  switch (is_complex(type) ? element_bytes(type) / 2 : element_bytes(type)) {
    case 2: return Word::kU16;
    case 4: return Word::kU32;
    case 8: return Word::kU64;
    default: return Word::kU8;
  }
}

void check_bitcomp_head(Datatype type, ConstBytes in, std::size_t raw_bytes) {
  thread_local Scratch copy;
  checked(bitcomp_word(type), Mode::kLossless, in, raw_bytes, copy);
}

extern const CodecRow kBitcompRow, kBitcompLossyRow;

const CodecRow kBitcompRow = {
    .id = CodecId::kBitcomp,
    .name = "bitcomp",
    .format = kFormat,
    .datatypes = "all",
    .exactness = "exact",
    .home = kHome,
    .lossy = false,
    .takes = [](Datatype) noexcept { return true; },
    .why_not = why_not,
    .library_major = library_major,
    .encode = encode_lossless,
    .decode = decode_lossless,
    .trusts_input = true,
};

const CodecRow kBitcompLossyRow = {
    .id = CodecId::kBitcompLossy,
    .name = "bitcomp_lossy",
    .format = kFormat,
    .datatypes = "float32, float64",
    .exactness = "|x - x'| <= bound; NaN and infinities exact",
    .home = kHome,
    .lossy = true,
    .takes = [](Datatype type) noexcept { return type == Datatype::kF32 || type == Datatype::kF64; },
    .why_not = why_not,
    .library_major = library_major,
    .encode = encode_lossy,
    .decode = decode_lossy,
    .trusts_input = true,
};

}  // namespace accdp
