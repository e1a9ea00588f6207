#include "gpu/device_messages.hpp"

#include "device/cuda.hpp"

namespace accdp {

/// Callers have a device of their own that is current; the background thread, which may have to go on, has none.
void await_for_wire(PostOffice& office, int device, std::uintptr_t stream) {
  const DeviceGuard guard(device);  // a stream may be the current device's default
  synchronize(reinterpret_cast<cudaStream_t>(stream));
  office.prepare_attendant([device] { use_device(device); });
}

void send_from_device(Group& group, int device, std::uintptr_t stream, ConstBytes data, int to, std::int64_t tag,
                      double timeout_s) {
  const DeviceGuard guard(device);
  const auto callers = reinterpret_cast<cudaStream_t>(stream);
  refuse_capture(callers);
  PostOffice& office = group.post_office();
  if (office.takes_device_memory(data.size(), to)) {
    await_for_wire(office, device, stream);  // what writes the data
    return office.wait(group.send(data, to, tag, timeout_s));
  }
  const PinnedBuffer host(data.size());
  copy_async(host.data(), data.data(), data.size(), callers);
  synchronize(callers);
  office.wait(group.send(host.span(), to, tag, timeout_s));
}

int receive_to_device(Group& group, int device, std::uintptr_t stream, Bytes data, int from, std::int64_t tag,
                      double timeout_s) {
  const DeviceGuard guard(device);
  const auto callers = reinterpret_cast<cudaStream_t>(stream);
  refuse_capture(callers);
  PostOffice& office = group.post_office();
  if (office.takes_device_memory(data.size(), from)) {
    await_for_wire(office, device, stream);  // what still uses the memory
    office.wait(group.receive(data, from, tag, timeout_s));
    return from;
  }
  const PinnedBuffer host(data.size());
  const MessageHandle message = group.receive(host.span(), from, tag, timeout_s);
  office.wait(message);
  copy_async(data.data(), host.data(), data.size(), callers);
  synchronize(callers);
  return message->peer;
}

}  // namespace accdp
