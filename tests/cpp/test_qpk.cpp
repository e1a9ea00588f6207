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
  ratios();
  damage(kQpk, 10000);
  fixtures();
}
