#include "gpu/shared_gpu.hpp"

namespace accdp {

std::vector<Copy> copies_of_pieces(std::byte* slot, const std::vector<ConstBytes>& blocks, std::size_t at,
                                   std::size_t most) {
  std::vector<Copy> copies;
  std::byte* to = slot;
  ConstBytes run;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const ConstBytes part = piece(blocks[b], at, most);
    if (part.empty()) continue;
    std::byte* const place = slot + b * most;
    const bool goes_on = run.data() + run.size() == part.data() && to + run.size() == place;
    // Allocations may lie side by side, too, and CUDA copies from one at a time.
    if (goes_on && is_one_allocation(run.data(), part.data())) {
      run = {run.data(), run.size() + part.size()};
    } else {
      copies.push_back({to, run.data(), run.size(), true});
      run = part;
      to = place;
    }
  }
  copies.push_back({to, run.data(), run.size(), true});
  return copies;
}

}  // namespace accdp
