#pragma once
#include "base/types.hpp"
#include "codec/nvcomp_api.hpp"

namespace accdp {

/// What nvCOMP's ANS is told that elements are: floats where it knows their exponents, else bytes.
nvcomp::AnsType ans_type(Datatype type) noexcept;

}  // namespace accdp
