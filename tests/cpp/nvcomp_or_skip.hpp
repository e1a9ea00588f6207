#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "check.hpp"
#include "codec/codec.hpp"
#include "codec/nvcomp_api.hpp"

/// Looks for nvCOMP where ACCDP_TEST_NVCOMP_DIR says, else where the loader does. Without it, checks what a user is
/// told and returns false: the rest of the test cannot run.
inline bool has_nvcomp(const accdp::CodecRow& row, double bound) {
  const char* directory = std::getenv("ACCDP_TEST_NVCOMP_DIR");
  if (directory) accdp::set_nvcomp_directory(directory);
  const std::string why_not = row.why_not();
  if (why_not.empty()) return true;
  std::vector<std::byte> data(64), out(64);
  CHECK_THROWS(row.encode({accdp::Datatype::kF32, bound}, data, out), accdp::UsageError,
               "pip install nvidia-libnvcomp-cu13");
  CHECK_THROWS(row.decode(accdp::Datatype::kF32, data, out), accdp::CodecError, "pip install nvidia-libnvcomp-cu13");
  CHECK(!directory);  // who names a folder wants the test to run
  std::printf("SKIP: %s\n", why_not.c_str());
  return false;
}
