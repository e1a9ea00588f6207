// What there is to say of the MPI library itself.
#include <cstring>

#include "mpi/world.hpp"

// An extension of MPICH and Open MPI that not every build has. Null where the library that is loaded lacks it.
extern "C" __attribute__((weak)) int MPIX_Query_cuda_support(void);

namespace accdp::mpi {

void throw_mpi(int code, const char* call, const char* file, int line) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  const char* base = std::strstr(file, "csrc/");
  throw MpiError(std::string(call) + " failed: " + std::string(text, length) + " (" + (base ? base + 5 : file) + ":" +
                 std::to_string(line) + ")");
}

std::string library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  ACCDP_MPI(MPI_Get_library_version(text, &length));
  return std::string(text, length);
}

const char* flavour() {
#if defined(OPEN_MPI)
  return "openmpi";
#elif defined(MPICH_VERSION)
  return "mpich";
#else
  return "other";
#endif
}

bool is_cuda_aware() { return MPIX_Query_cuda_support && MPIX_Query_cuda_support() == 1; }

}  // namespace accdp::mpi
