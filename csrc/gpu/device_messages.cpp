#include "gpu/device_messages.hpp"

#include "gpu/device_scope.hpp"
#include "gpu/host_room.hpp"

namespace accdp {
namespace {

/// The wire wants a message in one piece. What is longer than a window is not pinned: it may be under way for long, and
/// would take the pool's memory from all others.
HostRoom room_for(ConstBytes data) { return HostRoom(data.size(), most_window_bytes()); }

/// A message that waits in a room. Where it fails MPI may go on with that.
template <class Work>
auto in_room(Group& group, HostRoom& room, Work work) {
  try {
    return work();
  } catch (...) {
    if (group.has_wire() && group.may_miss_ranks()) std::move(room).leave_to_wire();
    throw;
  }
}

}  // namespace

/// Callers have a device of their own that is current; the background thread, which may have to go on, has none.
void await_for_wire(Group& group, int device, std::uintptr_t stream) {
  const DeviceScope scope(group, device);  // a stream may be the current device's default
  synchronize(reinterpret_cast<cudaStream_t>(stream));
  group.post_office().prepare_attendant([device] { use_device(device); });
}

void send_from_device(Group& group, int device, std::uintptr_t stream, ConstBytes data, int to, std::int64_t tag,
                      double timeout_s) {
  const DeviceScope scope(group, device);
  const auto callers = reinterpret_cast<cudaStream_t>(stream);
  refuse_capture(callers);
  PostOffice& office = group.post_office();
  if (office.takes_device_memory(data.size(), to)) {
    await_for_wire(group, device, stream);  // what writes the data
    return office.wait(group.send(data, to, tag, timeout_s));
  }
  HostRoom host = room_for(data);
  const Transfer down{host.data(), data.data(), data.size()};
  host.fetch({&down, 1}, callers);
  in_room(group, host, [&] { office.wait(group.send(host.span(), to, tag, timeout_s)); });
}

int receive_to_device(Group& group, int device, std::uintptr_t stream, Bytes data, int from, std::int64_t tag,
                      double timeout_s) {
  const DeviceScope scope(group, device);
  const auto callers = reinterpret_cast<cudaStream_t>(stream);
  refuse_capture(callers);
  PostOffice& office = group.post_office();
  if (office.takes_device_memory(data.size(), from)) {
    await_for_wire(group, device, stream);  // what still uses the memory
    office.wait(group.receive(data, from, tag, timeout_s));
    return from;
  }
  HostRoom host = room_for(data);
  const MessageHandle message = in_room(group, host, [&] {
    MessageHandle begun = group.receive(host.span(), from, tag, timeout_s);
    office.wait(begun);
    return begun;
  });
  const Transfer up{data.data(), host.data(), data.size()};
  host.deliver({&up, 1}, callers);
  return message->peer;
}

}  // namespace accdp
