// Messages whose device memory the wire gets as it is, where no caller waits for them: the background thread moves
// them.
#include "device_checks.hpp"
#include "process_wire.hpp"

namespace {

constexpr int kSecond = 1;  // not the device that a new thread begins with

/// A wire that takes device memory from threads whose current device it lies on, and not in pieces.
class DeviceWire : public ProcessWire {
 public:
  using ProcessWire::ProcessWire;
  bool takes_device_memory() const override { return true; }
  Request isend(ConstBytes data, int to, Tag tag, Form form = Form::kWhole) override {
    check(data, form);
    return ProcessWire::isend(data, to, tag, form);
  }
  Request irecv(Bytes data, int from, Tag tag, Form form = Form::kWhole) override {
    check(data, form);
    return ProcessWire::irecv(data, from, tag, form);
  }

 private:
  static void check(ConstBytes data, Form form) {
    cudaPointerAttributes attributes;
    ACCDP_CUDA(cudaPointerGetAttributes(&attributes, data.data()));
    if (attributes.type != cudaMemoryTypeDevice) return;
    int current;
    ACCDP_CUDA(cudaGetDevice(&current));
    CHECK(current == attributes.device && form == Form::kWhole);
  }
};

}  // namespace

void a_message(Group& group, std::size_t count) {
  cudasim::set_devices(2);
  const DeviceGuard guard(kSecond);
  Gpu gpu(group);
  const Array data(gpu, group.rank() == 0 ? input(0, count) : Ints(count));
  CHECK(group.post_office().takes_device_memory(data.bytes().size(), 1 - group.rank()));
  gpu.path->await(kSecond, reinterpret_cast<std::uintptr_t>(gpu.stream()));
  const MessageHandle message = group.rank() == 0 ? group.send(data.bytes(), 1, 3) : group.receive(data.bytes(), 0, 3);
  while (!message->done) usleep(1000);
  CHECK(!message->error && data.values() == input(0, count));
  group.barrier();
}

int main() {
  for (const std::size_t count : {25'000, 300'000})
    CHECK(run_processes_on_nodes({0, 1}, [count](Group& group) { a_message(group, count); }, wire_of<DeviceWire>));
}
