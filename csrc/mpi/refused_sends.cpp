#include "mpi/refused_sends.hpp"

#include <dlfcn.h>
#include <mpi.h>

#include <cstddef>
#include <cstdint>

#include "base/shared_library.hpp"

namespace accdp::mpi {
namespace {

constexpr int kHeard = 1;          // no RefusedSends here: MPI is told
constexpr int kUnsupported = -22;  // UCS_ERR_UNSUPPORTED
constexpr int kLastError = -100;   // UCS_ERR_LAST

thread_local int g_refused = kHeard;  // or a status, 0 for none

using Send = void*(void* endpoint, const void* data, std::size_t count, std::uint64_t tag, const void* how);

/// UCX's own, found where libmpi finds it without us. Tools that look at MPI have an MPI_Isend of their own.
Send* find_send() {
  Dl_info libmpi;
  if (!dladdr(reinterpret_cast<void*>(&PMPI_Isend), &libmpi)) return nullptr;
  SharedLibrary library(libmpi.dli_fname);
  Send* send = nullptr;
  if (library) library.find("ucp_tag_send_nbx", send);
  library.leak();
  return send;
}

}  // namespace

RefusedSends::RefusedSends() noexcept : before_(g_refused) { g_refused = 0; }
RefusedSends::~RefusedSends() { g_refused = before_; }
int RefusedSends::status() const noexcept { return g_refused; }

}  // namespace accdp::mpi

/// Where this module has brought libmpi into the process, libmpi's references are looked up here before they are in
/// libucp. Returns null for what is sent, a request, or an error as a pointer.
extern "C" __attribute__((visibility("default"))) void* ucp_tag_send_nbx(void* endpoint, const void* data,
                                                                         std::size_t count, std::uint64_t tag,
                                                                         const void* how) {
  using namespace accdp::mpi;
  static Send* const send = find_send();
  void* const sent =
      send ? send(endpoint, data, count, tag, how) : reinterpret_cast<void*>(std::intptr_t{kUnsupported});
  const auto status = reinterpret_cast<std::intptr_t>(sent);
  if (status >= 0 || status < kLastError || g_refused == kHeard) return sent;
  g_refused = static_cast<int>(status);
  return nullptr;
}
