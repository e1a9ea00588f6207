#include "torch/host_view.hpp"

namespace accdp::torch_backend {

HostView::HostView(const Execution& way, std::span<const Operand> operands, const std::vector<Operand::Use>& uses) {
  std::vector<DeviceBlock> on_device;
  std::vector<std::size_t> places;
  for (const Operand& operand : operands) {
    if (!operand.is_on_host()) {
      const Operand::Use use = uses[memory_.size()];
      on_device.push_back({operand.bytes(), false, use != Operand::kRead, use != Operand::kWrite});
      places.push_back(memory_.size());
    }
    memory_.push_back(operand.bytes());
  }
  if (on_device.empty()) return;
  copies_ = way.route->fetch(way.device, way.stream, on_device);
  for (std::size_t i = 0; i < places.size(); ++i) memory_[places[i]] = copies_->blocks()[i];
}

void HostView::deliver() {
  if (copies_) copies_->deliver();
}

}  // namespace accdp::torch_backend
