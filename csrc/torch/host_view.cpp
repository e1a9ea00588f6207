#include "torch/host_view.hpp"

namespace accdp::torch_backend {

HostView::HostView(const Way& way, std::span<const Operand> operands, const std::vector<Operand::Use>& uses,
                   bool later) {
  std::vector<DeviceBlock> far;
  std::vector<std::size_t> places;
  for (const Operand& operand : operands) {
    if (!operand.is_on_host()) {
      const Operand::Use use = uses[memory_.size()];
      const bool is_read = use != Operand::kWrite;
      far.push_back({operand.bytes(), is_read && !later, use != Operand::kRead, is_read && later});
      places.push_back(memory_.size());
    }
    memory_.push_back(operand.bytes());
  }
  if (far.empty()) return;
  copies_ = way.route->fetch(way.device, way.stream, far);
  for (std::size_t i = 0; i < places.size(); ++i) memory_[places[i]] = copies_->blocks()[i];
}

void HostView::deliver() {
  if (copies_) copies_->deliver();
}

}  // namespace accdp::torch_backend
