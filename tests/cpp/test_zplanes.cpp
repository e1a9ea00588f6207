#include <cmath>
#include <random>
#include <utility>

#include "codec/byte_planes.hpp"
#include "codec/sparse_frames.hpp"
#include "codec/sparse_plane.hpp"
#include "codec_cases.hpp"

namespace accdp {
extern const CodecRow kZhuffRow, kZstdRow;
}
using namespace accdp;

namespace {

template <class T>
double ratio(const CodecRow& row, Datatype type, const std::vector<T>& values) {
  const ConstBytes data = std::as_bytes(std::span(values));
  const std::size_t bytes = check_exact(row, type, data, 0);
  return bytes ? static_cast<double>(data.size()) / static_cast<double>(bytes) : 1;
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

/// Ratios that the format is there for; limits a little below what was measured.
void check_ratios() {
  std::mt19937 random(3);
  std::normal_distribution<float> weight(0, 0.04f);
  std::vector<float> f32(65536);
  std::vector<std::uint16_t> bf16, delta;
  std::vector<std::int64_t> ids;
  for (float& value : f32) {
    value = weight(random);
    bf16.push_back(static_cast<std::uint16_t>(bits_of(value) >> 16));
    // Mostly small, now and then more than a byte: what the difference of two versions of bfloat16 weights looks like.
    const float wide = std::exp(weight(random) * 30.0f + 1.5f);
    delta.push_back(static_cast<std::uint16_t>(wide));
    ids.push_back(static_cast<std::int64_t>(std::exp(std::abs(weight(random)) * 60.0f)));
  }
  CHECK(ratio(kZhuffRow, Datatype::kBF16, bf16) > 1.47);
  CHECK(ratio(kZstdRow, Datatype::kBF16, bf16) > 1.40);
  CHECK(ratio(kZhuffRow, Datatype::kF32, f32) > 1.19);
  CHECK(ratio(kZstdRow, Datatype::kF32, f32) > 1.17);
  CHECK(ratio(kZhuffRow, Datatype::kU16, delta) > 3.3);
  CHECK(ratio(kZstdRow, Datatype::kU16, delta) > 3.3);
  CHECK(ratio(kZhuffRow, Datatype::kI64, ids) > 7);
}

void check_planes() {
  for (Datatype type : kAllTypes) {
    const PlaneShape shape = plane_shape(type);
    for (std::size_t count : {0, 1, 2, 33, 1000}) {
      const std::size_t bytes = count * element_bytes(type);
      const std::vector<std::byte> data = filled(Fill::kNoise, bytes, element_bytes(type));
      std::vector<std::byte> planes(bytes + 1), restored(bytes);
      split_planes(shape, data, planes.data());
      const std::byte* at[8];
      for (std::size_t p = 0; p < shape.planes; ++p) at[p] = planes.data() + p * (bytes / shape.planes);
      merge_planes(shape, at, restored);
      CHECK(restored == data);
    }
  }
  const float minus_two = -2;  // exponent 128, sign the last bit of the rotated word
  std::byte planes[4];
  split_planes(plane_shape(Datatype::kF32), std::as_bytes(std::span(&minus_two, 1)), planes);
  CHECK(planes[0] == std::byte{128} && planes[1] == std::byte{} && planes[2] == std::byte{} &&
        planes[3] == std::byte{1});
}

std::vector<std::byte> sparse_of(std::byte usual, ConstBytes data) {
  std::vector<std::byte> room(2 * data.size());
  const Exceptions found = find_exceptions(usual, data, room.data());
  std::vector<std::byte> stream(found.sparse_bytes()), filled(data.size());
  write_sparse(usual, found, stream.data());
  CHECK(fill_in(usual, found, filled) && std::equal(filled.begin(), filled.end(), data.begin()));
  if (!found.values.empty()) CHECK(!fill_in(usual, found, Bytes(filled).first(0)));
  return stream;
}

void check_sparse() {
  for (std::size_t gap : {0, 1, 7, 8, 63, 64, 65, 254, 255, 256, 509, 510, 511, 2000}) {
    std::vector<std::byte> data(gap, std::byte{9}), restored(gap + 2);
    data.push_back(std::byte{1});
    data.push_back(std::byte{9});
    const std::vector<std::byte> stream = sparse_of(std::byte{9}, data);
    CHECK(stream.size() == 1 + gap / 255 + 2);
    CHECK(decode_sparse(stream, restored) && restored == data);
    CHECK(!decode_sparse(stream, Bytes(restored).first(gap)));
    CHECK(!decode_sparse(ConstBytes(stream).first(stream.size() - 1), restored));
  }
  const std::byte far[] = {kFar, kFar};  // beyond the end, where no value follows
  std::vector<std::byte> out(510);
  CHECK(fill_in(std::byte{9}, {far, {}}, out) && !fill_in(std::byte{9}, {far, {}}, Bytes(out).first(509)));
  // Against the description, byte by byte: exceptions from none to all, on and beside the ends of blocks.
  std::mt19937 random(7);
  for (unsigned every : {1, 2, 6, 50, 700})
    for (std::size_t size : {1, 64, 127, 128, 4096, 5001}) {
      std::vector<std::byte> data(size, std::byte{0xff}), restored(size), wanted{std::byte{0xff}};
      std::size_t gap = 0;
      for (std::byte& value : data) {
        if (random() % every == 0) value = static_cast<std::byte>(random() % 255);
        if (value == std::byte{0xff}) {
          ++gap;
          continue;
        }
        wanted.insert(wanted.end(), gap / 255, std::byte{255});
        wanted.insert(wanted.end(), {static_cast<std::byte>(gap % 255), value});
        gap = 0;
      }
      CHECK(sparse_of(std::byte{0xff}, data) == wanted);
      CHECK(decode_sparse(wanted, restored) && restored == data);
    }
}

/// Streams cut anywhere and rooms too short are refused without a look beyond their end, damaged ones too.
void check_packed_sparse() {
  std::mt19937 random(5);
  std::vector<std::byte> data(5000, std::byte{9}), restored(data.size()), room(data.size()), lists(2 * data.size());
  for (std::size_t at = 0; at < data.size(); at += 1 + random() % 40) data[at] = static_cast<std::byte>(random() % 4);
  const std::size_t bytes = pack_sparse(std::byte{9}, find_exceptions(std::byte{9}, data, lists.data()), room);
  const ConstBytes stream = ConstBytes(room).first(bytes);
  CHECK(bytes > 0 && decode_packed_sparse(stream, restored) && restored == data);
  for (std::size_t cut = 0; cut < bytes; ++cut) {
    const Guarded in(stream.first(cut));
    CHECK(!decode_packed_sparse(in.bytes(), restored));
  }
  std::vector<std::byte> bad(stream.begin(), stream.end());
  bad[9] ^= std::byte{1};  // of the first frame, after one that was good
  CHECK(decode_packed_sparse(stream, restored) && !decode_packed_sparse(bad, restored));
  for (std::size_t less : {data.size() / 2, data.size() / 50}) {
    const Guarded out(less);
    CHECK(!decode_packed_sparse(stream, out.bytes()));
  }
}

/// Builds a stream from (method, payload) per plane.
std::vector<unsigned char> stream_of(const std::vector<std::pair<int, std::vector<unsigned char>>>& planes) {
  std::vector<unsigned char> stream;
  for (const auto& [method, payload] : planes) {
    stream.push_back(static_cast<unsigned char>(method));
    for (int i = 0; i < 4; ++i) stream.push_back(static_cast<unsigned char>(payload.size() >> (8 * i)));
  }
  for (const auto& plane : planes) stream.insert(stream.end(), plane.second.begin(), plane.second.end());
  return stream;
}

void check_kept_streams() {
  // 200 letters as frames of libzstd 1.5.4: level -100 with forced Huffman coding, and level 1.
  const std::vector<unsigned char> huffman = {
      0x28, 0xb5, 0x2f, 0xfd, 0x20, 0xc8, 0xf5, 0x01, 0x00, 0x82, 0x8c, 0x0e, 0x06, 0xe0, 0x0f, 0x21, 0x8c, 0x44,
      0x8c, 0x1b, 0xf9, 0x46, 0xbe, 0x91, 0x6f, 0xe4, 0x1b, 0xf9, 0x46, 0xbe, 0x91, 0x6f, 0xe4, 0x1b, 0xf9, 0x46,
      0xbe, 0x91, 0x6f, 0xe4, 0x1b, 0xf9, 0x46, 0xbe, 0x91, 0x6f, 0xe4, 0x1b, 0xf9, 0x46, 0xbe, 0x91, 0x6f, 0xe4,
      0x1b, 0xf9, 0x46, 0xbe, 0x91, 0x6f, 0xe4, 0x1b, 0xf9, 0x46, 0xbe, 0x91, 0x6f, 0xe4, 0x1b, 0x01, 0x00};
  const std::vector<unsigned char> fast = {0x28, 0xb5, 0x2f, 0xfd, 0x20, 0xc8, 0x75, 0x00, 0x00, 0x38, 0x45, 0x6e,
                                           0x6f, 0x74, 0x74, 0x6f, 0x6e, 0x01, 0x00, 0x3e, 0x51, 0xc5, 0x08};
  std::vector<std::uint32_t> words;
  for (std::uint32_t i = 0; i < 200; ++i) {
    const auto letter = static_cast<unsigned char>("Entropy"[i * i % 7]);
    words.push_back(0xff000000u | (i == 3 ? 0x010000u : i == 199 ? 0x020000u : 0x070000u) | letter * 0x0101u);
  }
  const auto good = stream_of({{1, {0xff}}, {3, {7, 3, 1, 195, 2}}, {2, huffman}, {2, fast}});
  check_stored(kZstdRow, Datatype::kU32, good, words.data(), 800);

  // Rotated words: plane 0 is the exponent, the last bit of plane 1 the sign.
  const std::uint16_t ones[] = {0x3f80, 0xbf80, 0x3fc0, 0xbfff};
  check_stored(kZhuffRow, Datatype::kBF16, stream_of({{1, {127}}, {0, {0x00, 0x01, 0x80, 0xff}}}), ones, 8);

  std::vector<std::byte> out(800);
  const auto refuses = [&](std::vector<unsigned char> stream, std::size_t bytes) {
    const Guarded in(std::as_bytes(std::span(stream)));
    CHECK_THROWS(kZstdRow.decode(Datatype::kU32, in.bytes(), Bytes(out).first(bytes)), CodecError, "byte planes");
  };
  for (std::size_t bytes : {0, 4, 796, 799}) refuses(good, bytes);
  for (std::size_t cut = 0; cut < good.size(); ++cut)
    refuses({good.begin(), good.begin() + static_cast<int>(cut)}, 800);
  auto two_frames = huffman;
  two_frames.insert(two_frames.end(), fast.begin(), fast.end());
  refuses(stream_of({{1, {1}}, {1, {1}}, {1, {1}}, {2, two_frames}}), 800);
  refuses(stream_of({{1, {1}}, {1, {1}}, {1, {1}}, {5, {1}}}), 800);
  refuses(stream_of({{1, {1}}, {1, {1}}, {1, {1}}, {1, {1, 1}}}), 800);
  refuses(stream_of({{1, {1}}, {1, {1}}, {1, {1}}, {3, {}}}), 800);
  refuses(stream_of({{1, {1}}, {1, {1}}, {1, {1}}, {0, {1, 2, 3}}}), 800);
  refuses(stream_of({{1, {1}}, {1, {1}}, {1, {1}}, {1, {1}}}), 799);
  auto more = good;
  more.push_back(0);
  refuses(more, 800);
}

}  // namespace

int main() {
  check_planes();
  check_sparse();
  for (const CodecRow* row : {&kZhuffRow, &kZstdRow}) {
    if (!row->why_not().empty()) {
      std::vector<std::byte> data(64), out(64);
      CHECK_THROWS(row->encode({Datatype::kF32, 0}, data, out), UsageError, "libzstd.so.1");
      std::printf("SKIP: %s\n", row->why_not().c_str());
      return kSkipped;
    }
    check_exact_everywhere(*row);
    for (Fill fill : {Fill::kWords, Fill::kSparse, Fill::kZeros})
      for (Datatype type : {Datatype::kU8, Datatype::kU16, Datatype::kF32, Datatype::kI64})
        check_survives_damage(*row, type, fill, 1000);
    check_threads(*row);
  }
  check_packed_sparse();
  check_kept_streams();
  check_ratios();
  return 0;
}
