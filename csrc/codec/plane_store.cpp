#include "codec/plane_store.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.hpp"
#include "codec/scratch.hpp"
#include "codec/sparse_frames.hpp"
#include "codec/sparse_plane.hpp"

namespace accdp {
namespace {

enum class Method : std::uint8_t { kRaw = 0, kOneValue = 1, kFrame = 2, kSparse = 3, kPackedSparse = 4 };

constexpr std::size_t kHeaderBytes = 5;    // of one plane
constexpr std::size_t kWorthPacking = 64;  // bytes; two frames have heads
constexpr std::size_t kLittle = 16;        // a plane stored in less than one in so many bytes
constexpr std::size_t kPartOfPlane = 8;    // of which a frame is made to see what a frame of all would come to

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

/// The plane as exceptions from its usual byte, in the smaller of the two forms where one fits; else as it is.
Stored store_sparse(std::byte usual, ConstBytes plane, Bytes room) {
  thread_local Scratch scratch;
  const Exceptions found = find_exceptions(usual, plane, scratch.at_least(2 * plane.size()));
  const std::size_t bytes = found.sparse_bytes();
  if (bytes > plane.size()) return {Method::kRaw, plane.size()};
  const std::size_t packed = bytes > kWorthPacking ? pack_sparse(usual, found, room) : 0;
  if (packed && packed < bytes) return {Method::kPackedSparse, packed};
  if (bytes > room.size()) return {Method::kRaw, plane.size()};
  write_sparse(usual, found, room.data());
  return {Method::kSparse, bytes};
}

/// Whether one frame of the plane may well take less than `bytes`, judged by a frame of a part of it. Exceptions that
/// are strewn over a plane, as changed weights are, need fewer bytes than a frame, which codes the usual bytes too.
bool frame_may_be_smaller(zstd::Effort effort, ConstBytes plane, std::size_t bytes) {
  const std::size_t part = plane.size() / kPartOfPlane;
  thread_local Scratch scratch;
  const std::size_t most = bytes / kPartOfPlane;  // what it would have to come to
  const Bytes room(scratch.at_least(most + 1), most);
  return zstd::compress(effort, plane.subspan((plane.size() - part) / 2, part), room) > 0;
}

/// Writes the plane's payload to `out` where it fits; what is there is of no use where only the plane itself would do.
Stored store(zstd::Effort effort, ConstBytes plane, Bytes out) {
  if (is_one_value(plane)) {
    if (!out.empty()) out[0] = plane[0];
    return {Method::kOneValue, 1};
  }
  const Bytes room = out.first(std::min(out.size(), plane.size() - 1));
  Stored best{Method::kRaw, plane.size()};
  bool try_frame = true;
  if (plane.size() >= 4 * Sample::kBytes) {
    const Sample sample(plane);
    if (sample.is_sparse()) best = store_sparse(sample.usual(), plane, room);
    // Repetitions do not show in a sample of single bytes: the effort that looks for them always tries. The other one
    // would gain too little to be worth its time where next to nothing is left.
    try_frame = effort == zstd::Effort::kFast || (sample.is_skewed() && best.bytes > plane.size() / kLittle);
    if (try_frame && effort == zstd::Effort::kHuffman && best.method != Method::kRaw)
      try_frame = frame_may_be_smaller(effort, plane, best.bytes);
  }
  if (!try_frame) return best;
  // Frames are the smaller form where the exceptions come in clusters, as in gradients of rows that were not used.
  thread_local Scratch scratch;
  const bool has_other = best.method != Method::kRaw;
  const Bytes other = has_other ? Bytes(scratch.at_least(best.bytes), best.bytes - 1) : room;
  if (const std::size_t bytes = zstd::compress(effort, plane, other)) {
    if (has_other) std::memcpy(room.data(), other.data(), bytes);
    best = {Method::kFrame, bytes};
  }
  return best;
}

[[noreturn]] void refuse(const char* codec, const char* what) {
  throw CodecError(std::string(codec) + ": damaged byte planes: " + what);
}

/// Where the plane lies after its payload was read: in `room` or still in the stream.
const std::byte* restore(const char* codec, Method method, ConstBytes payload, Bytes room) {
  switch (method) {
    case Method::kRaw:
      if (payload.size() != room.size()) refuse(codec, "a plane stored as it is has the wrong size");
      return payload.data();
    case Method::kOneValue:
      if (payload.size() != 1) refuse(codec, "a plane of one value has more than one byte");
      std::memset(room.data(), static_cast<int>(payload[0]), room.size());
      return room.data();
    case Method::kFrame:
      if (!zstd::decompress(payload, room)) refuse(codec, "a zstd frame cannot be read or has the wrong size");
      return room.data();
    case Method::kPackedSparse:
      if (!decode_packed_sparse(payload, room)) refuse(codec, "a packed sparse plane does not fit");
      return room.data();
    case Method::kSparse:
      if (!decode_sparse(payload, room)) refuse(codec, "a sparse plane does not fit");
      return room.data();
  }
  refuse(codec, "unknown method");
}

}  // namespace

std::size_t store_planes(zstd::Effort effort, std::span<const ConstBytes> planes, Bytes out) {
  std::size_t used = planes.size() * kHeaderBytes;
  for (std::size_t p = 0; p < planes.size(); ++p) {
    if (used > out.size()) return 0;
    const Stored stored = store(effort, planes[p], out.subspan(used));
    if (stored.bytes > out.size() - used) return 0;
    if (stored.method == Method::kRaw) std::memcpy(out.data() + used, planes[p].data(), stored.bytes);
    put_header(out.data() + p * kHeaderBytes, stored.method, stored.bytes);
    used += stored.bytes;
  }
  return used;
}

std::size_t restore_planes(const char* codec, ConstBytes in, std::size_t count, std::byte* room,
                           std::span<const std::byte*> at) {
  std::size_t used = at.size() * kHeaderBytes;
  if (in.size() < used) refuse(codec, "cut off");
  for (std::size_t p = 0; p < at.size(); ++p) {
    const std::byte* header = in.data() + p * kHeaderBytes;
    const std::size_t bytes = payload_bytes(header);
    if (bytes > in.size() - used) refuse(codec, "cut off");
    at[p] = restore(codec, static_cast<Method>(header[0]), in.subspan(used, bytes), {room + p * count, count});
    used += bytes;
  }
  return used;
}

}  // namespace accdp
