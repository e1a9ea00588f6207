#pragma once
#include <cstdint>

#include "coll/group.hpp"

namespace accdp {

/// Send and receive for memory of a device. The MPI library gets it as it is where PostOffice::takes_device_memory says
/// so; all else goes through host memory of the message's own, because messages go on beside collectives. What
/// the other rank does, and where its memory is, is its own affair. Both return when the message has been handed over,
/// as their counterparts on host memory do. The work begins after what `stream` holds now. Throw UsageError while the
/// stream is captured into a graph.
void send_from_device(Group& group, int device, std::uintptr_t stream, ConstBytes data, int to, std::int64_t tag,
                      double timeout_s);
/// Returns the rank that sent.
int receive_to_device(Group& group, int device, std::uintptr_t stream, Bytes data, int from, std::int64_t tag,
                      double timeout_s);

/// Of messages that the wire gets as they are: waits until what the stream holds is done.
void await_for_wire(Group& group, int device, std::uintptr_t stream);

}  // namespace accdp
