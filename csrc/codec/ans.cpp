// ans: nvCOMP's asymmetric numeral systems, one batched stream per chunk. nvCOMP has them for devices only
// (cuda_nvcomp.cu): the host can neither write nor read one. They are of nvCOMP's major version.
#include "codec/ans.hpp"

#include "base/error.hpp"
#include "codec/codec.hpp"

namespace accdp {

nvcomp::AnsType ans_type(Datatype type) noexcept {
  switch (type) {
    case Datatype::kF8E4M3: return nvcomp::AnsType::kF8E4M3;
    case Datatype::kF16:
    case Datatype::kBF16: return nvcomp::AnsType::kHalves;
    case Datatype::kF32:
    case Datatype::kC64: return nvcomp::AnsType::kF32;
    default: return nvcomp::AnsType::kBytes;
  }
}

extern const CodecRow kAnsRow, kFpkRow;

const CodecRow kAnsRow = {
    .id = CodecId::kAns,
    .name = "ans",
    .format = 1,
    .datatypes = "all",
    .exactness = "exact",
    .home = "nvCOMP, on GPUs",
    .lossy = false,
    .takes = [](Datatype) noexcept { return true; },
    .why_not = [] { return nvcomp::batched_ans().why_not; },
    .library_major = [] { return nvcomp::kMajor; },
    .encode = [](const Encoding&, ConstBytes, Bytes) -> std::size_t { return 0; },
    .decode = [](Datatype, ConstBytes, Bytes) { throw CodecError("an ANS stream, which only a GPU can read"); },
    .stand_in = &kFpkRow,
};

}  // namespace accdp
