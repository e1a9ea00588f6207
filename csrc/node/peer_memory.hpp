#pragma once
#include <string>

#include "base/types.hpp"

namespace accdp {

/// Cross-memory attach: one process of the machine copies straight out of another's memory, without its help.
///
/// Copies to.size() bytes from `address` in process `pid`. Returns 0, or the errno: ESRCH where the process is gone,
/// EFAULT where the memory is, EPERM or ENOSYS where the system does not allow it. Then what `to` holds is undefined.
int read_peer_memory(int pid, std::uint64_t address, Bytes to) noexcept;

/// Lets every process of this user read this one's memory where Yama allows that to parents only (ptrace_scope 1).
void allow_peers_to_read() noexcept;

/// Why processes of this user cannot read each other's memory here, as far as one of them can tell; "" if they can.
std::string why_no_single_copy();

/// What an errno of read_peer_memory() says about the machine.
std::string why_not_read(int error);

}  // namespace accdp
