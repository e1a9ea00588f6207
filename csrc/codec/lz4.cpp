// lz4: one raw LZ4 block per chunk, as any LZ4 library and nvCOMP's batched GPU code read and write it. 8-byte integers
// are taken apart into byte planes first (byte_planes.hpp): token ids get 1.2 to 1.6 times smaller by it. Narrower ones
// gain as often as they lose, so all other datatypes are taken as they lie.
#include <algorithm>
#include <limits>
#include <string>

#include "base/error.hpp"
#include "codec/byte_planes.hpp"
#include "codec/codec.hpp"
#include "codec/lz4.hpp"
#include "codec/nvcomp_api.hpp"
#include "codec/scratch.hpp"

namespace accdp {
namespace {

constexpr std::size_t kMaxBytes = 0x7e000000;  // the largest input of one block
constexpr int kAcceleration = 1;               // the most thorough of the fast ones

std::size_t encode(const Encoding& how, ConstBytes in, Bytes out) {
  const nvcomp::Lz4& api = nvcomp::lz4();
  if (!api.why_not.empty()) throw UsageError(api.why_not);
  if (in.size() < 2 || in.size() > kMaxBytes) return 0;
  const std::byte* from = in.data();
  thread_local Scratch scratch;
  if (lz4_splits(how.type)) {
    std::byte* planes = scratch.at_least(in.size());
    split_planes(plane_shape(how.type), in, planes);
    from = planes;
  }
  // With less room than LZ4's worst case it answers 0 where the block does not fit.
  const std::size_t room = std::min(out.size(), in.size() - 1);
  const int bytes = api.compress_fast(reinterpret_cast<const char*>(from), reinterpret_cast<char*>(out.data()),
                                      static_cast<int>(in.size()), static_cast<int>(room), kAcceleration);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
}

void decode(Datatype type, ConstBytes in, Bytes out) {
  const nvcomp::Lz4& api = nvcomp::lz4();
  if (!api.why_not.empty()) throw CodecError(api.why_not);
  if (in.empty() || in.size() > out.size() || out.size() > kMaxBytes || out.size() % element_bytes(type) != 0)
    throw CodecError("an LZ4 block of " + std::to_string(in.size()) + " bytes cannot be one for " +
                     std::to_string(out.size()) + " bytes of " + name_of(type));
  thread_local Scratch scratch;
  std::byte* to = lz4_splits(type) ? scratch.at_least(out.size()) : out.data();
  const int bytes = api.decompress_safe(reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(to),
                                        static_cast<int>(in.size()), static_cast<int>(out.size()));
  if (bytes < 0 || static_cast<std::size_t>(bytes) != out.size())
    throw CodecError("damaged LZ4 block: it gives " + std::to_string(bytes) + " of " + std::to_string(out.size()) +
                     " bytes");
  if (!lz4_splits(type)) return;
  const PlaneShape shape = plane_shape(type);
  const std::byte* planes[sizeof(std::uint64_t)];
  for (std::size_t p = 0; p < shape.planes; ++p) planes[p] = to + p * (out.size() / shape.planes);
  merge_planes(shape, planes, out);
}

}  // namespace

bool lz4_splits(Datatype type) noexcept { return type == Datatype::kI64 || type == Datatype::kU64; }

extern const CodecRow kLz4Row;

const CodecRow kLz4Row = {
    .id = CodecId::kLz4,
    .name = "lz4",
    .format = 1,
    .datatypes = "all",
    .exactness = "exact",
    .home = "nvCOMP",
    .lossy = false,
    .takes = [](Datatype) noexcept { return true; },
    .why_not = [] { return nvcomp::lz4().why_not; },
    .library_major = []() -> std::uint8_t { return 0; },
    .encode = encode,
    .decode = decode,
};

}  // namespace accdp
