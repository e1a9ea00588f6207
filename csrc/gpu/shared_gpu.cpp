#include "gpu/shared_gpu.hpp"

namespace accdp {

void copy_pieces(std::byte* slot, const std::vector<ConstBytes>& blocks, std::size_t at, std::size_t most,
                 cudaStream_t stream) {
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
      copy_async(to, run.data(), run.size(), stream);
      run = part;
      to = place;
    }
  }
  copy_async(to, run.data(), run.size(), stream);
}

}  // namespace accdp
