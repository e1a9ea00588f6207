// qpk: what bounded_cases.hpp says, its ratios, and that its bytes stay what they are.
#include "codec/qpk.hpp"

#include "bounded_cases.hpp"

namespace accdp {
extern const CodecRow kQpkRow;
}
using namespace accdp;
using enum Datatype;

namespace {

const BoundedCodec kQpk = {kQpkRow, qpk_encode, qpk_decode};

/// The table of sizes takes nearly all of what the last block leaves: that has no room, and writes nothing behind it.
void no_room() {
  for (Datatype type : kBoundedTypes) {
    const Buffer last = make(Kind::kBell, type, 256);
    Buffer data = make(Kind::kBits, type, (last.size() / 2 - 8) * 256);  // the table takes 16 bytes less than a block
    std::copy(last.begin(), last.end(), data.end() - static_cast<std::ptrdiff_t>(last.size()));
    CHECK(!checked(kQpk, type, 0.004, last).empty() && checked(kQpk, type, 0.004, data).empty());
  }
}

/// Blocks of no whole number of planes, and of more than numbers have.
void odd_blocks() {
  for (std::uint16_t bytes : {16, 40, 17 * 32, 31 * 32}) {
    Buffer stream(16 + std::size_t{bytes}), out(4 * 256);  // behind the step and the table of sizes
    const double step = 0.5;
    std::memcpy(stream.data(), &step, 8);
    std::memcpy(stream.data() + 8, &bytes, 2);
    for (const BlockOps* ops : {&block_ops(), &portable_block_ops()})
      CHECK_THROWS(qpk_decode(kF32, stream, out, *ops), CodecError, "damaged block");
  }
}

void ratios() {
  CHECK(bell_ratio(kQpk, kF32, 0.1) > 5.5);
  CHECK(bell_ratio(kQpk, kF32, 0.01) > 3.5);
  CHECK(bell_ratio(kQpk, kF32, 0.001) > 2.6);
  CHECK(bell_ratio(kQpk, kBF16, 0.1) > 2.6);
  CHECK(bell_ratio(kQpk, kBF16, 0.01) > 1.6);
  CHECK(bell_ratio(kQpk, kF16, 0.1) > 2.7);
}

/// What is on the wire must not change unnoticed: other bytes need another CodecRow::format.
void fixtures() {
  const struct {
    Datatype type;
    double bound;
    std::uint64_t hash;
  } known[] = {
      {kF32, 0.001, 0x5bc67c653ba33553},
      {kBF16, 0.001, 0x3a79523745d7600f},
      {kF16, 0.001, 0x22c010a86a2f081e},
  };
  for (const auto& one : known) {
    const std::uint64_t now = fnv(checked(kQpk, one.type, one.bound, make(Kind::kBell, one.type, 5000)));
    if (now != one.hash) std::fprintf(stderr, "%s: 0x%016llx\n", name_of(one.type), (unsigned long long)now);
    CHECK(now == one.hash);
  }
}

}  // namespace

int main() {
  sizes(kQpk);
  all_patterns(kQpk);
  half_steps(kQpk);
  special_values(kQpk);
  no_room();
  ratios();
  damage(kQpk, 10000);
  odd_blocks();
  fixtures();
}
