#include "mpi/refusals.hpp"

#include <dlfcn.h>
#include <mpi.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "base/shared_library.hpp"

namespace accdp::mpi {
namespace {

constexpr int kUnsupported = -22;  // UCS_ERR_UNSUPPORTED

std::atomic<int> g_unasked{0};
std::atomic<bool> g_sends_here{false};

/// Of UCX's errors those that a connection to a process that is gone ends with. Others MPI has to hear of.
bool is_end(std::intptr_t status) noexcept {
  switch (status) {
    case -3:   // UCS_ERR_IO_ERROR
    case -6:   // UCS_ERR_UNREACHABLE
    case -20:  // UCS_ERR_TIMED_OUT
    case -23:  // UCS_ERR_REJECTED
    case -24:  // UCS_ERR_NOT_CONNECTED
    case -25:  // UCS_ERR_CONNECTION_RESET
    case -80:  // UCS_ERR_ENDPOINT_TIMEOUT
      return true;
    default: return false;
  }
}

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

Hiding& hiding() noexcept {
  thread_local Hiding own;
  return own;
}

bool can_hide() noexcept { return g_sends_here.load(std::memory_order_relaxed); }

void leave_unasked(int refusal) noexcept {
  static std::atomic<bool> g_said{false};
  g_unasked = refusal;
  if (g_said.exchange(true)) return;
  std::fprintf(stderr,
               "accdp: in process %d UCX refused a send of MPI's own, or of another user of MPI (%s): a rank has "
               "ended, and who waits for that message may wait without end\n",
               getpid(), text_of_refusal(refusal));
}

int take_any_refusal() noexcept {
  const int own = take_refusal();
  return own ? own : g_unasked.load(std::memory_order_relaxed) ? g_unasked.exchange(0) : 0;
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
  if (!can_hide()) g_sends_here = true;
  void* const sent =
      ucx().send ? ucx().send(endpoint, data, count, tag, how) : reinterpret_cast<void*>(std::intptr_t{kUnsupported});
  const auto status = reinterpret_cast<std::intptr_t>(sent);
  if (!is_end(status)) return sent;
  Hiding& own = hiding();
  if (own.depth == 0 || own.exposes) return sent;
  own.refusal = static_cast<int>(status);
  return nullptr;
}
#endif
