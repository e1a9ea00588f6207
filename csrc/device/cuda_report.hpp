#pragma once
#include <cstdint>
#include <string>

namespace accdp {

/// What `accdp info` says about CUDA. Versions as CUDA writes them: 13000 is 13.0.
struct CudaReport {
  int runtime_version = 0;  ///< that accdp was built with
  int driver_version = 0;   ///< the newest runtime that the driver knows; 0 without a driver
  int devices = 0;
  std::string why_not;  ///< why no GPU can be used; empty where one can
};
CudaReport cuda_report();

/// The device that memory lies on: the current one for the null address of an empty buffer. Throws UsageError with
/// `name` where it is no device memory.
int device_of(std::uintptr_t address, const char* name);

}  // namespace accdp
