// zhuff and zstd: one byte format, two efforts. The words of a chunk are taken apart into byte planes (byte_planes.hpp)
// and each plane is stored in the way that suits it:
//
//   for each plane: u8 method, u32 size of its payload, little endian
//   for each plane: payload
//
//   method 0  the plane's bytes as they are
//   method 1  one byte: every byte of the plane is this one
//   method 2  one zstd frame of the plane
//   method 3  one usual byte and the exceptions from it (sparse_plane.hpp)
//   method 4  the same in two zstd frames (sparse_frames.hpp)
//
// A decoder needs neither the effort nor the version of libzstd that made a stream.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.hpp"
#include "codec/byte_planes.hpp"
#include "codec/codec.hpp"
#include "codec/scratch.hpp"
#include "codec/sparse_frames.hpp"
#include "codec/sparse_plane.hpp"
#include "codec/zstd_api.hpp"

namespace accdp {
namespace {

enum class Method : std::uint8_t { kRaw = 0, kOneValue = 1, kFrame = 2, kSparse = 3, kPackedSparse = 4 };

constexpr std::size_t kHeaderBytes = 5;  // of one plane
constexpr std::size_t kMaxPlanes = 8;
constexpr std::size_t kWorthPacking = 64;  // bytes; two frames have heads

void put_header(std::byte* at, Method method, std::size_t payload_bytes) {
  at[0] = static_cast<std::byte>(method);
  for (int i = 0; i < 4; ++i) at[1 + i] = static_cast<std::byte>(payload_bytes >> (8 * i));
}

std::size_t payload_bytes(const std::byte* header) {
  std::size_t bytes = 0;
  for (int i = 0; i < 4; ++i) bytes |= static_cast<std::size_t>(header[1 + i]) << (8 * i);
  return bytes;
}

bool is_one_value(ConstBytes plane) { return std::memcmp(plane.data(), plane.data() + 1, plane.size() - 1) == 0; }

/// A thousand bytes from all over a plane, counted.
class Sample {
 public:
  static constexpr std::size_t kPieces = 16, kPieceBytes = 64, kBytes = kPieces * kPieceBytes;

  explicit Sample(ConstBytes plane) {
    const std::size_t stride = (plane.size() - kPieceBytes) / (kPieces - 1);
    for (std::size_t piece = 0; piece < kPieces; ++piece)
      for (std::byte value : plane.subspan(piece * stride, kPieceBytes)) ++counts_[static_cast<std::size_t>(value)];
  }

  /// Whether the Huffman coder would gain a few percent, judged by how often two bytes are equal against what bytes
  /// without any preference show. Mantissas come to 1.04 times that; at 1.25 about 7.6 bits remain of 8.
  bool is_skewed() const {
    std::size_t equal_pairs = 0;
    for (std::size_t count : counts_) equal_pairs += count * (count - 1) / 2;
    constexpr double kPairs = kBytes * (kBytes - 1) / 2.0;
    return static_cast<double>(equal_pairs) > 1.25 / 256 * kPairs;
  }

  std::byte usual() const {
    return static_cast<std::byte>(std::max_element(counts_.begin(), counts_.end()) - counts_.begin());
  }
  /// One byte in six at most is another one: a sparse form may be the smallest.
  bool is_sparse() const { return counts_[static_cast<std::size_t>(usual())] >= kBytes - kBytes / 6; }

 private:
  std::array<std::size_t, 256> counts_{};
};

struct Stored {
  Method method;
  std::size_t bytes;
};

/// Writes the plane's payload to `out` where it fits; nothing is written where only the plane itself would do.
Stored store(zstd::Effort effort, ConstBytes plane, Bytes out) {
  if (is_one_value(plane)) {
    out[0] = plane[0];
    return {Method::kOneValue, 1};
  }
  bool try_frame = true, try_sparse = false;
  std::byte usual{};
  if (plane.size() >= 4 * Sample::kBytes) {
    const Sample sample(plane);
    // Repetitions do not show in a sample of single bytes: the effort that looks for them always tries.
    try_frame = effort == zstd::Effort::kFast || sample.is_skewed();
    try_sparse = sample.is_sparse();
    usual = sample.usual();
  }
  Stored best{Method::kRaw, plane.size()};
  const Bytes room = out.first(std::min(out.size(), plane.size() - 1));
  if (try_frame)
    if (const std::size_t bytes = zstd::compress(effort, plane, room)) best = {Method::kFrame, bytes};
  // Frames are the smaller form where the exceptions come in clusters, as in gradients of rows that were not used.
  if (try_sparse) {
    thread_local Scratch scratch;
    const Bytes sparse(scratch.at_least(2 * plane.size()), plane.size());
    const std::size_t bytes = encode_sparse(usual, plane, sparse);
    const Bytes packed(sparse.data() + plane.size(), std::min({room.size(), best.bytes - 1, plane.size()}));
    const std::size_t fewer = bytes > kWorthPacking ? pack_sparse(sparse.first(bytes), packed) : 0;
    if (fewer && fewer < bytes) {
      std::memcpy(out.data(), packed.data(), fewer);
      best = {Method::kPackedSparse, fewer};
    } else if (bytes && bytes < best.bytes && bytes <= room.size()) {
      std::memcpy(out.data(), sparse.data(), bytes);
      best = {Method::kSparse, bytes};
    }
  }
  return best;
}

template <zstd::Effort kEffort>
std::size_t encode(const Encoding& how, ConstBytes in, Bytes out) {
  if (!zstd::why_not().empty()) throw UsageError(zstd::why_not());
  const PlaneShape shape = plane_shape(how.type);
  const std::size_t count = in.size() / shape.planes;
  const std::size_t most = std::min(out.size(), in.size());  // the stream has to stay below this
  std::size_t used = shape.planes * kHeaderBytes;
  if (count == 0 || used >= most || count > std::numeric_limits<std::uint32_t>::max()) return 0;

  thread_local Scratch scratch;
  const std::byte* planes = in.data();
  if (shape.planes > 1) {
    std::byte* split = scratch.at_least(in.size());
    split_planes(shape, in, split);
    planes = split;
  }
  for (std::size_t p = 0; p < shape.planes; ++p) {
    const ConstBytes plane(planes + p * count, count);
    const Stored stored = store(kEffort, plane, out.subspan(used, most - used));
    if (used + stored.bytes >= most) return 0;
    if (stored.method == Method::kRaw) std::memcpy(out.data() + used, plane.data(), count);
    put_header(out.data() + p * kHeaderBytes, stored.method, stored.bytes);
    used += stored.bytes;
  }
  return used;
}

[[noreturn]] void refuse(const char* what) {
  throw CodecError(std::string("damaged byte planes (zhuff or zstd): ") + what);
}

/// Where the plane lies after its payload was read: in `scratch` or still in the stream.
const std::byte* restore(Method method, ConstBytes payload, Bytes scratch) {
  switch (method) {
    case Method::kRaw:
      if (payload.size() != scratch.size()) refuse("a plane stored as it is has the wrong size");
      return payload.data();
    case Method::kOneValue:
      if (payload.size() != 1) refuse("a plane of one value has more than one byte");
      std::memset(scratch.data(), static_cast<int>(payload[0]), scratch.size());
      return scratch.data();
    case Method::kFrame:
      if (!zstd::decompress(payload, scratch)) refuse("a zstd frame cannot be read or has the wrong size");
      return scratch.data();
    case Method::kPackedSparse:
      if (!decode_packed_sparse(payload, scratch)) refuse("a packed sparse plane does not fit");
      return scratch.data();
    case Method::kSparse:
      if (!decode_sparse(payload, scratch)) refuse("a sparse plane does not fit");
      return scratch.data();
  }
  refuse("unknown method");
}

void decode(Datatype type, ConstBytes in, Bytes out) {
  if (!zstd::why_not().empty()) throw CodecError(zstd::why_not());
  const PlaneShape shape = plane_shape(type);
  const std::size_t count = out.size() / shape.planes;
  if (out.empty() || out.size() % shape.planes != 0) refuse("no stream is for this many bytes");
  if (in.size() < shape.planes * kHeaderBytes) refuse("cut off");

  thread_local Scratch scratch;
  std::byte* const room = shape.planes > 1 ? scratch.at_least(out.size()) : out.data();
  const std::byte* planes[kMaxPlanes];
  std::size_t used = shape.planes * kHeaderBytes;
  for (std::size_t p = 0; p < shape.planes; ++p) {
    const std::byte* header = in.data() + p * kHeaderBytes;
    const std::size_t bytes = payload_bytes(header);
    if (bytes > in.size() - used) refuse("cut off");
    planes[p] = restore(static_cast<Method>(header[0]), in.subspan(used, bytes), {room + p * count, count});
    used += bytes;
  }
  if (used != in.size()) refuse("bytes left over");
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
    .decode = decode,
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
    .decode = decode,
};

}  // namespace accdp
