#include <cmath>
#include <limits>

#include "base/settings.hpp"
#include "codec/survey.hpp"
#include "codec_cases.hpp"
#include "coll/stream_codec.hpp"
#include "nvcomp_or_skip.hpp"

namespace accdp {
extern const CodecRow kBitcompRow, kBitcompLossyRow;
}
using namespace accdp;

namespace {

/// Values of all magnitudes that a gradient may have, and with `with_special` some that no bound makes sense for.
template <class Real>
std::vector<Real> gradients(std::size_t count, bool with_special) {
  std::mt19937_64 random(count);
  std::normal_distribution<double> normal;
  std::vector<Real> values;
  for (std::size_t i = 0; i < count; ++i) {
    double value = normal(random) * (random() % 3000 ? 1 : std::exp(normal(random) * 12));
    if (with_special && random() % 4000 == 0)
      value = random() % 2 ? std::numeric_limits<double>::quiet_NaN() : -std::numeric_limits<double>::infinity();
    values.push_back(static_cast<Real>(value));
  }
  return values;
}

/// Encodes and decodes; returns the encoded bytes, having checked every value against the bound.
template <class Real>
std::size_t check_bound(Datatype type, const std::vector<Real>& values, double bound, std::size_t skew) {
  const Guarded in(std::as_bytes(std::span(values)), skew), out(in.bytes().size(), skew);
  const std::size_t bytes = kBitcompLossyRow.encode({type, bound}, in.bytes(), out.bytes());
  if (bytes == 0) return 0;
  CHECK(bytes < in.bytes().size());
  const Guarded stream(out.bytes().first(bytes), skew), raw(in.bytes().size(), skew);
  kBitcompLossyRow.decode(type, stream.bytes(), raw.bytes());
  std::vector<Real> restored(values.size());
  std::memcpy(restored.data(), raw.bytes().data(), raw.bytes().size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]))
      CHECK(std::abs(static_cast<long double>(restored[i]) - values[i]) <= bound);
    else
      CHECK(std::memcmp(&restored[i], &values[i], sizeof(Real)) == 0);
  }
  return bytes;
}

template <class Real>
void check_bounds(Datatype type) {
  constexpr double kHuge = std::numeric_limits<double>::max();
  for (std::size_t count : {0, 1, 2, 3, 2047, 2049, 50001})
    for (bool with_special : {false, true})
      for (double bound : {kHuge, 1e38, 0.3, 0.125, std::nextafter(0.125, 1.0), std::nextafter(0.125, 0.0), 1e-3, 1e-9,
                           1e-38, 1e-300, std::numeric_limits<double>::denorm_min()})
        for (std::size_t skew : {0, 1, 4}) {
          const std::size_t bytes = check_bound(type, gradients<Real>(count, with_special), bound, skew);
          if (count == 50001 && !with_special && bound == 0.3) CHECK(bytes > 0 && bytes < count * sizeof(Real) / 2);
        }
  // The largest numbers must not be rounded up to infinity.
  constexpr Real kMax = std::numeric_limits<Real>::max();
  std::vector<Real> largest(5000, kMax);
  for (std::size_t i = 0; i < largest.size(); i += 3) largest[i] = -kMax / static_cast<Real>(1 + i % 64);
  for (double bound : {kHuge, 1e37, 1e30, 1.0}) check_bound(type, largest, bound, 0);
}

void check_wrong_bounds() {
  std::vector<float> values(4096, 1.5f);
  std::vector<std::byte> out(4 * 4096);
  const ConstBytes in = std::as_bytes(std::span(values));
  for (double bound : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    CHECK_THROWS(kBitcompLossyRow.encode({Datatype::kF32, bound}, in, out), UsageError, "error bound");
  for (Datatype type : kAllTypes) {
    const bool takes = type == Datatype::kF32 || type == Datatype::kF64;
    CHECK(kBitcompLossyRow.takes(type) == takes);
    if (!takes) CHECK_THROWS(kBitcompLossyRow.encode({type, 1}, in, out), UsageError, name_of(type));
  }
}

/// What a header shows is refused; damage behind it is for the checksums of the frames.
void check_refusals() {
  const std::vector<std::byte> data = filled(Fill::kSparse, 40000, 4);
  std::vector<std::byte> stream(40000), out(80000);
  stream.resize(kBitcompRow.encode({Datatype::kF32, 0}, data, stream));
  CHECK(stream.size() > 100);
  const auto refuses = [&](Datatype type, ConstBytes in, std::size_t bytes) {
    const Guarded guarded(in);
    CHECK_THROWS(kBitcompRow.decode(type, guarded.bytes(), Bytes(out).first(bytes)), CodecError, "Bitcomp");
  };
  for (std::size_t bytes : {0, 4, 39996, 40004, 80000}) refuses(Datatype::kF32, stream, bytes);
  refuses(Datatype::kI32, stream, 40000);
  refuses(Datatype::kBF16, stream, 40000);
  for (std::size_t cut = 0; cut < stream.size(); cut += cut < 64 ? 1 : 97)
    refuses(Datatype::kF32, ConstBytes(stream).first(cut), 40000);
  CHECK_THROWS(kBitcompLossyRow.decode(Datatype::kF32, stream, Bytes(out).first(40000)), CodecError, "Bitcomp");
  stream.push_back({});
  refuses(Datatype::kF32, stream, 40000);
  std::mt19937_64 random(5);
  for (int i = 0; i < 1000; ++i) {
    for (std::size_t at = 0; at < 32; ++at) stream[at] = static_cast<std::byte>(random());
    refuses(Datatype::kF32, stream, 40000);
  }
}

void check_kept_streams() {
  std::vector<std::uint16_t> steps;
  for (int i = 0; i < 100; ++i) steps.push_back(static_cast<std::uint16_t>(1000 + i % 7));
  check_stored(
      kBitcompRow, Datatype::kU16,
      {0x4e, 0x56, 0x5a, 0x02, 0x00, 0x00, 0x00, 0x00, 0x15, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xc8, 0x00,
       0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
       0x00, 0x00, 0xa8, 0x00, 0x00, 0x19, 0x0f, 0x0f, 0x0f, 0x0f, 0x0f, 0x0f, 0x70, 0x38, 0x1c, 0x0e, 0x87, 0xc3,
       0xe1, 0x70, 0x38, 0x1c, 0x0e, 0x87, 0x03, 0x4c, 0x26, 0x93, 0xc9, 0x64, 0x32, 0x99, 0x4c, 0x26, 0x93, 0xc9,
       0x64, 0x02, 0x2a, 0x95, 0x4a, 0xa5, 0x52, 0xa9, 0x54, 0x2a, 0x95, 0x4a, 0xa5, 0x52, 0x09, 0x03, 0xeb, 0xf0,
       0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xfd, 0x61, 0x0c, 0x61, 0x0c, 0x61, 0x0c, 0x61, 0x00, 0x89,
       0x63, 0x00, 0x89, 0x61, 0x00, 0x89, 0x61, 0x00, 0x89, 0x61, 0x00, 0x89, 0x61, 0x00, 0x89, 0x6b},
      steps.data(), 200);

  std::vector<float> halves;  // made with bound 0.25
  for (int i = 0; i < 100; ++i) halves.push_back(static_cast<float>(i % 9) * 0.5f);
  check_stored(
      kBitcompLossyRow, Datatype::kF32,
      {0x4e, 0x56, 0x5a, 0x09, 0x01, 0x01, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x90, 0x01,
       0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x3f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
       0x00, 0x00, 0x88, 0x00, 0x00, 0x09, 0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x00, 0x01, 0x02, 0x04,
       0xf0, 0xe0, 0xc1, 0x83, 0x07, 0x0f, 0x1e, 0x3c, 0x78, 0xf0, 0xe0, 0xc1, 0x03, 0xcc, 0x98, 0x31, 0x63, 0xc6,
       0x8c, 0x19, 0x33, 0x66, 0xcc, 0x98, 0x31, 0x03, 0xaa, 0x54, 0xa9, 0x52, 0xa5, 0x4a, 0x95, 0x2a, 0x55, 0xaa,
       0x54, 0xa9, 0x02, 0x00, 0xf0, 0xf0, 0xf0, 0xf0, 0xfe, 0x60, 0x0c, 0x60, 0x0c, 0x60, 0x0c, 0x60, 0x0b, 0x7b},
      halves.data(), 400);
}

/// A right frame of Bitcomp's, for ranks that asked for it and for ranks that left the choice to auto.
void check_that_it_must_be_named() {
  std::vector<float> values(20000, 0.5f);
  const std::vector<Piece> pieces{{std::as_writable_bytes(std::span(values)), Datatype::kF32}};
  const StreamOptions named = stream_options("bitcomp", 0, ""), automatic = stream_options("auto", 0, "");
  const StreamPlan plan(pieces, 1 << 20);
  StreamReport report;
  std::vector<std::byte> room(plan.room());
  const Signature call{.sequence = 1};
  StreamCodec root(call, pieces, plan, named, report);
  const ConstBytes frame = root.encode(0, room);
  CHECK(frame.size() < plan.bytes() / 2);
  root.decode(0, frame);
  StreamCodec other(call, pieces, plan, automatic, report);
  CHECK_THROWS(other.decode(0, frame), CodecError, "a chunk of codec bitcomp, which the call did not ask for");
  const auto in_host = [](const CodecRow&, const CodecCost& cost) { return cost; };
  const std::vector<Candidate> tried = codecs_to_try({Datatype::kF64, 0.1}, 0, 0, in_host);
  CHECK(!tried.empty());
  for (const Candidate& one : tried) CHECK(one.codec != &kBitcompRow && one.codec != &kBitcompLossyRow);
}

}  // namespace

int main() {
  set_setting("ACCDP_CACHE_DIR", "-");
  if (!has_nvcomp(kBitcompRow, 0) || !has_nvcomp(kBitcompLossyRow, 1)) return kSkipped;
  CHECK(kBitcompRow.library_major() == 6 && kBitcompLossyRow.library_major() == 6);
  check_exact_everywhere(kBitcompRow);
  check_bounds<float>(Datatype::kF32);
  check_bounds<double>(Datatype::kF64);
  check_wrong_bounds();
  check_refusals();
  check_kept_streams();
  check_that_it_must_be_named();
  check_threads(kBitcompRow);
  return 0;
}
