// zhuff and zstd: one byte format, two efforts. The words of a chunk are taken apart into byte planes
// (byte_planes.hpp), which are stored one by one (plane_store.hpp).
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.hpp"
#include "codec/byte_planes.hpp"
#include "codec/codec.hpp"
#include "codec/plane_store.hpp"
#include "codec/scratch.hpp"

namespace accdp {
namespace {

constexpr std::size_t kMaxPlanes = 8;

template <zstd::Effort kEffort>
std::size_t encode(const Encoding& how, ConstBytes in, Bytes out) {
  if (!zstd::why_not().empty()) throw UsageError(zstd::why_not());
  const PlaneShape shape = plane_shape(how.type);
  const std::size_t count = in.size() / shape.planes;
  if (count == 0 || count > std::numeric_limits<std::uint32_t>::max()) return 0;

  thread_local Scratch scratch;
  const std::byte* split = in.data();
  if (shape.planes > 1) {
    std::byte* const room = scratch.at_least(in.size());
    split_planes(shape, in, room);
    split = room;
  }
  ConstBytes planes[kMaxPlanes];
  for (std::size_t p = 0; p < shape.planes; ++p) planes[p] = {split + p * count, count};
  const Bytes room = out.first(std::min(out.size(), in.size() - 1));  // the stream has to be smaller
  return store_planes(kEffort, {planes, shape.planes}, room);
}

void decode(const char* codec, Datatype type, ConstBytes in, Bytes out) {
  if (!zstd::why_not().empty()) throw CodecError(zstd::why_not());
  const PlaneShape shape = plane_shape(type);
  const std::size_t count = out.size() / shape.planes;
  if (out.empty() || out.size() % shape.planes != 0)
    throw CodecError(std::string(codec) + ": damaged byte planes: no stream is for this many bytes");

  thread_local Scratch scratch;
  std::byte* const room = shape.planes > 1 ? scratch.at_least(out.size()) : out.data();
  const std::byte* planes[kMaxPlanes];
  if (restore_planes(codec, in, count, room, {planes, shape.planes}) != in.size())
    throw CodecError(std::string(codec) + ": damaged byte planes: bytes left over");
  if (shape.planes > 1)
    merge_planes(shape, planes, out);
  else if (planes[0] != out.data())
    std::memcpy(out.data(), planes[0], count);
}

bool takes(Datatype) noexcept { return true; }
std::string why_not() { return zstd::why_not(); }
std::uint8_t library_major() { return 0; }

constexpr std::uint8_t kFormat = 1;
constexpr const char* kHome = "own planes, libzstd";

}  // namespace

extern const CodecRow kZhuffRow, kZstdRow;

const CodecRow kZhuffRow = {
    .id = CodecId::kZhuff,
    .name = "zhuff",
    .format = kFormat,
    .datatypes = "all",
    .exactness = "exact",
    .home = kHome,
    .lossy = false,
    .takes = takes,
    .why_not = why_not,
    .library_major = library_major,
    .encode = encode<zstd::Effort::kHuffman>,
    .decode = [](Datatype type, ConstBytes in, Bytes out) { decode("zhuff", type, in, out); },
};

const CodecRow kZstdRow = {
    .id = CodecId::kZstd,
    .name = "zstd",
    .format = kFormat,
    .datatypes = "all",
    .exactness = "exact",
    .home = kHome,
    .lossy = false,
    .takes = takes,
    .why_not = why_not,
    .library_major = library_major,
    .encode = encode<zstd::Effort::kFast>,
    .decode = [](Datatype type, ConstBytes in, Bytes out) { decode("zstd", type, in, out); },
};

}  // namespace accdp
