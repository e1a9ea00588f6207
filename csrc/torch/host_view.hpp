#pragma once
#include <memory>
#include <span>
#include <vector>

#include "coll/device_route.hpp"
#include "torch/tensors.hpp"

namespace accdp::torch_backend {

/// How one operation is carried out.
struct Execution {
  Collectives& via;
  DeviceRoute* route = nullptr;  ///< where tensors are on a device, to be used in the order of this stream
  int device = -1;
  std::uintptr_t stream = 0;
};

/// Operands for what works in the host only: host memory as it is, memory of a device as copies. What is read is
/// fetched when on_device() is asked for it.
class HostView {
 public:
  HostView(const Execution& way, std::span<const Operand> operands, Operand::Use use)
      : HostView(way, operands, std::vector(operands.size(), use)) {}
  /// uses: of each.
  HostView(const Execution& way, std::span<const Operand> operands, const std::vector<Operand::Use>& uses);
  Bytes operator[](std::size_t i) const { return memory_[i]; }
  /// What was written goes to the device, in the order of the stream.
  void deliver();
  /// For streams that are encoded on the device; null where all of it is host memory.
  DeviceTensors* on_device() { return copies_ ? &copies_->on_device() : nullptr; }

 private:
  std::vector<Bytes> memory_;
  std::unique_ptr<HostCopies> copies_;
};

}  // namespace accdp::torch_backend
