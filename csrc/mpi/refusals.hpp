#pragma once
#include <utility>

namespace accdp::mpi {

/// MPICH (5.0.2) uses a null request where UCX refuses at once to send: the connection to the receiver has broken, as
/// it does when that rank's process ends, be it in the middle of the call. While a thread hides such refusals its MPI
/// takes what was refused for sent. Which it is not: whoever has begun the message is to ask. Nothing is hidden from an
/// MPI that was in the process before the module that this is part of.
struct Hiding {
  int depth = 0;  // of those that hide within one another
  bool exposes = false;
  int refusal = 0;
};
/// This thread's. Asked for once each time, because that alone costs more than the rest; inlined it would be again.
[[gnu::noinline]] Hiding& hiding() noexcept;
/// Whether MPI was seen to send by way of this module, so that refusals can be hidden from it.
bool can_hide() noexcept;
/// Says on stderr, once, that something was refused for which nobody has asked.
void leave_unasked(int refusal) noexcept;

inline Hiding& begin_hiding() noexcept {
  Hiding& own = hiding();
  if (own.depth++ == 0) own = {.depth = 1};
  return own;
}
inline void end_hiding(Hiding& own) noexcept {
  if (--own.depth == 0 && own.refusal) leave_unasked(own.refusal);
}
inline void expose_refusals() noexcept { hiding().exposes = true; }  ///< to the end of the outermost hiding
/// UCX's status of the last that was hidden from this thread's MPI, below 0; 0 where none was since the last question.
inline int take_refusal() noexcept { return std::exchange(hiding().refusal, 0); }
/// The same of the process: any call of MPI's goes on with its collectives, whichever thread has begun them.
int take_any_refusal() noexcept;
const char* text_of_refusal(int status) noexcept;  ///< as UCX puts it

}  // namespace accdp::mpi
