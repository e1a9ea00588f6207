#include "codec_cases.hpp"
#include "nvcomp_or_skip.hpp"

namespace accdp {
extern const CodecRow kLz4Row;
}
using namespace accdp;

namespace {

void check_kept_streams() {
  std::vector<std::uint16_t> steps;
  for (int i = 0; i < 100; ++i) steps.push_back(static_cast<std::uint16_t>(1000 + i % 7));
  check_stored(kLz4Row, Datatype::kU16, {0xef, 0xe8, 0x03, 0xe9, 0x03, 0xea, 0x03, 0xeb, 0x03, 0xec, 0x03, 0xed,
                                         0x03, 0xee, 0x03, 0x0e, 0x00, 0xa2, 0x50, 0x03, 0xe8, 0x03, 0xe9, 0x03},
               steps.data(), 200);

  std::vector<std::int64_t> ids;  // in byte planes
  for (int i = 0; i < 50; ++i) ids.push_back(i % 3);
  check_stored(
      kLz4Row, Datatype::kI64,
      {0x1f, 0x00, 0x01, 0x00, 0xff, 0x4c, 0x2f, 0x01, 0x02, 0x03, 0x00, 0x17, 0x50, 0x00, 0x01, 0x02, 0x00, 0x01},
      ids.data(), 400);
}

void check_refusals() {
  const std::vector<std::byte> data = filled(Fill::kWords, 4096, 4);
  std::vector<std::byte> stream(4096), out(8192);
  stream.resize(kLz4Row.encode({Datatype::kI32, 0}, data, stream));
  CHECK(!stream.empty());
  for (std::size_t bytes : {0, 4, 4092, 4100, 8192})
    CHECK_THROWS(kLz4Row.decode(Datatype::kI32, stream, Bytes(out).first(bytes)), CodecError, "LZ4 block");
  CHECK_THROWS(kLz4Row.decode(Datatype::kI32, {}, Bytes(out).first(4096)), CodecError, "LZ4 block");
  CHECK_THROWS(kLz4Row.decode(Datatype::kI64, stream, Bytes(out).first(4095)), CodecError, "LZ4 block");
}

}  // namespace

int main() {
  if (!has_nvcomp(kLz4Row, 0)) return kSkipped;
  CHECK(kLz4Row.library_major() == 0);
  check_exact_everywhere(kLz4Row);
  check_kept_streams();
  check_refusals();
  for (Fill fill : {Fill::kWords, Fill::kSparse, Fill::kZeros})
    for (Datatype type : {Datatype::kU8, Datatype::kI32, Datatype::kI64})
      check_survives_damage(kLz4Row, type, fill, 1500);
  check_threads(kLz4Row);
  return 0;
}
