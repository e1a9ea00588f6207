#pragma once

namespace accdp::mpi {

/// MPICH (5.0.2) uses a null request where UCX refuses at once to send: the connection to the receiver has broken, as
/// it does when that rank's process ends, be it in the middle of the call. While a thread hides refusals MPI takes what
/// UCX refuses for sent. Which it is not: whoever has begun the message is to ask. Nothing is hidden from an MPI that
/// was in the process before the module that this is part of.
void hide_refusals() noexcept;
void show_refusals() noexcept;  ///< ends it
/// UCX's status of the last that was hidden from this thread's MPI, below 0; 0 where none was since the last question.
int take_refusal() noexcept;
void report_refusal() noexcept;        ///< says on stderr, once, that one was hidden for which nobody has asked
constexpr int kConnectionReset = -25;  ///< UCS_ERR_CONNECTION_RESET
const char* text_of_refusal(int status) noexcept;  ///< as UCX puts it

}  // namespace accdp::mpi
