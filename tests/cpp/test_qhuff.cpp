// qhuff: what bounded_cases.hpp says, its ratios, and that streams are read as they always were.
#include "codec/qhuff.hpp"

#include "bounded_cases.hpp"
#include "codec/zstd_api.hpp"

namespace accdp {
extern const CodecRow kQhuffRow;
}
using namespace accdp;
using enum Datatype;

namespace {

const BoundedCodec kQhuff = {kQhuffRow, qhuff_encode, qhuff_decode};

void ratios() {
  CHECK(bell_ratio(kQhuff, kF32, 0.1) > 6.9);
  CHECK(bell_ratio(kQhuff, kF32, 0.01) > 4.0);
  CHECK(bell_ratio(kQhuff, kF32, 0.001) > 2.7);
  CHECK(bell_ratio(kQhuff, kBF16, 0.1) > 3.1);
  CHECK(bell_ratio(kQhuff, kBF16, 0.01) > 1.9);
  CHECK(bell_ratio(kQhuff, kF16, 0.1) > 3.4);
}

/// A stream by hand, of planes that need no libzstd: three blocks, the second as it is, and three elements behind.
void written_by_hand() {
  Buffer stream, wanted;
  const auto add = [](Buffer& to, const auto& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    to.insert(to.end(), bytes.begin(), bytes.end());
  };
  const auto add_plane = [&](std::uint8_t method, std::uint32_t bytes) {
    add(stream, method);
    add(stream, bytes);
  };
  add(stream, 0.5);              // the step
  add(stream, std::uint8_t{2});  // the second block
  add_plane(3, 3);
  add_plane(0, 512);
  for (int byte : {0, 255, 255}) add(stream, static_cast<std::uint8_t>(byte));  // upper bytes: 0, no exceptions
  stream.resize(stream.size() + 512);
  for (std::size_t i = 0; i < 512; ++i) stream[stream.size() - 512 + i] = static_cast<std::byte>(i);
  for (int i = 0; i < 256 + 3; ++i) add(stream, HUGE_VALF);
  for (int i = 0; i < 3 * 256 + 3; ++i) {
    const int zigzag = i % 256;
    const bool is_exact = i / 256 % 2 == 1;  // the second block, and what fills none
    add(wanted, is_exact ? HUGE_VALF : 0.5F * static_cast<float>(zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2));
  }
  Buffer out(wanted.size());
  qhuff_decode(kF32, stream, out);
  CHECK(out == wanted);
  for (std::size_t cut = 0; cut < stream.size(); ++cut) {
    const Buffer less(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(cut));
    CHECK_THROWS(qhuff_decode(kF32, less, out), CodecError, "qhuff");
  }
  for (std::uint8_t map : {7, 2 | 8}) {  // every block as it is; a block that there is not
    Buffer bad = stream;
    bad[8] = std::byte{map};
    CHECK_THROWS(qhuff_decode(kF32, bad, out), CodecError, "qhuff");
  }
}

/// The one block that is not as it is saves as much as the map of blocks takes: nothing is left for its planes.
void no_room() {
  const Buffer block = make(Kind::kBell, kBF16, 256);
  Buffer data = make(Kind::kBits, kBF16, 8 * (block.size() - Quantiser::kHeaderBytes) * 256);
  std::copy(block.begin(), block.end(), data.begin());
  CHECK(checked(kQhuff, kBF16, 0.004, data).empty());
}

}  // namespace

int main() {
  if (!kQhuffRow.why_not().empty()) {
    Buffer data(4096), out(4096);
    CHECK_THROWS(qhuff_encode(kF32, 0.1, data, out), UsageError, "libzstd.so.1");
    std::printf("SKIP: %s\n", kQhuffRow.why_not().c_str());
    return kSkipped;
  }
  written_by_hand();
  sizes(kQhuff);
  all_patterns(kQhuff);
  half_steps(kQhuff);
  special_values(kQhuff);
  no_room();
  ratios();
  damage(kQhuff, 10000);
}
