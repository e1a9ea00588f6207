#include "node/peer_memory.hpp"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/settings.hpp"

namespace accdp {
namespace {

/// 0: processes of one user may read each other; 1: descendants only, or whom they name; 2: administrators; 3: nobody.
int ptrace_scope() {
  int scope = 0;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;  // not there: no Yama
  return scope;
}

}  // namespace

int read_peer_memory(int pid, std::uint64_t address, Bytes to) noexcept {
  while (!to.empty()) {
    iovec mine{to.data(), to.size()};
    iovec theirs{reinterpret_cast<void*>(address), to.size()};
    const ssize_t n = process_vm_readv(pid, &mine, 1, &theirs, 1, 0);
    if (n < 0) return errno;
    if (n == 0) return EFAULT;
    to = to.subspan(n);  // fewer where a page in between is gone; the next call then says so
    address += n;
  }
  return 0;
}

void allow_peers_to_read() noexcept {
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // fails where there is no Yama, which then asks for nothing
}

std::string why_not_read(int error) {
  if (error == EPERM && ptrace_scope() > 0) return "kernel.yama.ptrace_scope is " + std::to_string(ptrace_scope());
  return std::string("process_vm_readv: ") + std::strerror(error);
}

std::string why_no_single_copy() {
  if (settings().cma == "off") return "ACCDP_CMA=off";
  const char here = 1;
  char there = 0;
  const int error = read_peer_memory(getpid(), reinterpret_cast<std::uint64_t>(&here),
                                     {reinterpret_cast<std::byte*>(&there), sizeof there});
  if (error) return why_not_read(error);
  // Everybody may read himself.
  return ptrace_scope() > 0 ? why_not_read(EPERM) : "";
}

}  // namespace accdp
