#pragma once
#include "base/error.hpp"
#include "check.hpp"
#include "codec/nvcomp_api.hpp"
#include "nvcomp_or_skip.hpp"

/// Makes the process find nvCOMP's host functions in nvCOMP's library, and its batched ones in the simulated device's
/// (nvcomp/batched.cpp). False without nvCOMP: then there are none on the device either.
inline bool has_batched_nvcomp() {
  for (const char* codec : {"lz4", "bitcomp"})
    if (!has_nvcomp(accdp::codec_named(codec), 0)) return false;
  accdp::set_nvcomp_directory(CUDASIM_NVCOMP_DIR);
  CHECK(accdp::nvcomp::batched_lz4().why_not.empty());
  CHECK(accdp::nvcomp::batched_bitcomp().why_not.empty());
  CHECK(accdp::nvcomp::batched_ans().why_not.empty());
  return true;
}
