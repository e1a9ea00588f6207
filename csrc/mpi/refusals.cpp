#include "mpi/refusals.hpp"

#include <dlfcn.h>
#include <mpi.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "base/shared_library.hpp"

namespace accdp::mpi {
namespace {

constexpr int kUnsupported = -22;  // UCS_ERR_UNSUPPORTED
constexpr int kLastError = -100;   // UCS_ERR_LAST

thread_local bool g_hides = false;
thread_local int g_refusal = 0;

struct Ucx {
  void* (*send)(void* endpoint, const void* data, std::size_t count, std::uint64_t tag, const void* how) = nullptr;
  const char* (*text)(int status) = nullptr;
};

/// UCX's own functions, where libmpi would find them without us. Tools that look at MPI have an MPI_Isend of their own.
Ucx find_ucx() {
  Ucx found;
  Dl_info libmpi;
  if (!dladdr(reinterpret_cast<void*>(&PMPI_Isend), &libmpi)) return found;
  SharedLibrary library(libmpi.dli_fname);
  if (!library) return found;
  library.find("ucp_tag_send_nbx", found.send);
  library.find("ucs_status_string", found.text);
  library.leak();
  return found;
}

const Ucx& ucx() {
  static const Ucx found = find_ucx();
  return found;
}

}  // namespace

void hide_refusals() noexcept {
  g_hides = true;
  g_refusal = 0;
}
void show_refusals() noexcept { g_hides = false; }
int take_refusal() noexcept { return std::exchange(g_refusal, 0); }
void report_refusal() noexcept {
  static std::atomic<bool> g_said{false};
  const int refusal = take_refusal();
  if (refusal == 0 || g_said.exchange(true)) return;
  std::fprintf(stderr,
               "accdp: UCX refused a send of MPI's own, or of another user of MPI, in process %d (%s): a rank has "
               "ended, and who waits for that message may wait without end\n",
               getpid(), text_of_refusal(refusal));
}
const char* text_of_refusal(int status) noexcept { return ucx().text ? ucx().text(status) : "an error of UCX"; }

}  // namespace accdp::mpi

#if defined(MPICH_VERSION)
/// libmpi's references are looked up in the module that has brought it into the process before they are in libucp.
/// Returns null for what is sent, a request, or an error as a pointer.
extern "C" __attribute__((visibility("default"))) void* ucp_tag_send_nbx(void* endpoint, const void* data,
                                                                         std::size_t count, std::uint64_t tag,
                                                                         const void* how) {
  using namespace accdp::mpi;
  void* const sent =
      ucx().send ? ucx().send(endpoint, data, count, tag, how) : reinterpret_cast<void*>(std::intptr_t{kUnsupported});
  const auto status = reinterpret_cast<std::intptr_t>(sent);
  if (status >= 0 || status < kLastError || !g_hides) return sent;
  g_refusal = static_cast<int>(status);
  return nullptr;
}
#endif
