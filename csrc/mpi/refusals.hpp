#pragma once

namespace accdp::mpi {

/// MPICH (5.0.2) uses a null request where UCX refuses at once to send: the connection to the receiver has broken, as
/// it does when that rank's process ends, be it in the middle of the call. While a thread hides such refusals its MPI
/// takes what was refused for sent. Which it is not: whoever has begun the message is to ask. Nothing is hidden from an
/// MPI that was in the process before the module that this is part of.
void begin_hiding() noexcept;  ///< may be within another one's
/// Says on stderr, once, that something was refused for which nobody has asked.
void end_hiding() noexcept;
void expose_refusals() noexcept;  ///< to the end of the outermost hiding
/// UCX's status of the last that was hidden from this thread's MPI, below 0; 0 where none was since the last question.
int take_refusal() noexcept;
/// The same of the process: any call of MPI's goes on with its collectives, whichever thread has begun them.
int take_any_refusal() noexcept;
const char* text_of_refusal(int status) noexcept;  ///< as UCX puts it

}  // namespace accdp::mpi
