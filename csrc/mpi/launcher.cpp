#include "mpi/launcher.hpp"

#include <poll.h>
#include <unistd.h>

#include <cstddef>
#include <string_view>

// What Open MPI speaks to its launcher by; null in MPICH, which speaks PMI-1.
extern "C" __attribute__((weak)) int PMIx_Initialized(void);
extern "C" __attribute__((weak)) int PMIx_Finalize(const void* info, std::size_t count);

namespace accdp::mpi {
namespace {

constexpr int kAnswerTakesMs = 3000;
constexpr int kUsers = 8;  // parts of Open MPI that may have initialised PMIx, which counts them

}  // namespace

void say_finalized(int pmi_fd) noexcept {
  if (PMIx_Initialized && PMIx_Finalize) {
    for (int user = 0; user < kUsers && PMIx_Initialized(); ++user) PMIx_Finalize(nullptr, 0);
  } else if (pmi_fd >= 0) {
    constexpr std::string_view kRequest = "cmd=finalize\n";
    pollfd launcher{pmi_fd, POLLIN, 0};
    char answer[256];
    if (write(launcher.fd, kRequest.data(), kRequest.size()) > 0 && poll(&launcher, 1, kAnswerTakesMs) > 0)
      static_cast<void>(!read(launcher.fd, answer, sizeof answer));
  }
}

}  // namespace accdp::mpi
