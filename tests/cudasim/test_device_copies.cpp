// Several copies at once: lengths around a pack and a tile, any alignment, more than one kernel takes.
#include <vector>

#include "device/cuda_copies.hpp"
#include "on_device.hpp"

namespace {

constexpr std::size_t kTile = 16 << 10;

struct Case {
  std::size_t bytes, from_shift = 0, to_shift = 0;
};

/// Makes them and looks at every target and what is around it; returns how many operations that took.
struct Operations {
  int kernels, copies;
  bool operator==(const Operations&) const = default;
};
Operations check(const std::vector<Case>& cases) {
  const Stream stream = make_stream();
  std::vector<Buffer> values;
  std::vector<OnDevice> sources, targets;
  std::vector<Copy> copies;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& one = cases[i];
    values.push_back(any_bits(one.bytes, i + 1));
    sources.emplace_back(values.back(), one.from_shift);
    targets.emplace_back(any_bits(one.bytes, i + 1000), one.to_shift);
    copies.push_back({targets.back().data(), sources.back().data(), one.bytes, i % 3 == 0});
  }
  const Operations before{cudasim::calls("cudaLaunchKernelExC"), cudasim::calls("cudaMemcpyAsync")};
  copy_async(copies, stream.get());
  const Operations after{cudasim::calls("cudaLaunchKernelExC"), cudasim::calls("cudaMemcpyAsync")};
  for (std::size_t i = 0; i < cases.size(); ++i)
    CHECK(targets[i].values(stream.get()) == values[i] && sources[i].values(stream.get()) == values[i]);
  return {after.kernels - before.kernels, after.copies - before.copies};
}

}  // namespace

int main() {
  CHECK((check({}) == Operations{0, 0}));
  CHECK((check({{1}, {15}, {16}, {17}, {0}, {4097}}) == Operations{1, 0}));
  CHECK((check({{kTile - 1}, {kTile}, {kTile + 1}, {3 * kTile + 20}}) == Operations{1, 0}));
  CHECK((check({{0}, {5 * kTile}}) == Operations{0, 1}));
  // Those that do not lie at a multiple of 16 go alone, and so does one that is left.
  CHECK((check({{100, 16, 32}, {100, 4}, {100}, {100, 0, 1}}) == Operations{1, 2}));
  CHECK((check({{100}, {100, 4, 4}}) == Operations{0, 2}));
  std::vector<Case> many;
  for (std::size_t i = 0; i < 150; ++i) many.push_back({i * 37});
  CHECK((check(many) == Operations{3, 0}));
  many.resize(65 + 1);  // the first is empty
  CHECK((check(many) == Operations{2, 0}));
  // More tiles than blocks.
  CHECK((check({{1500 * kTile + 5}, {700 * kTile}}) == Operations{1, 0}));

  const Stream stream = make_stream();
  const DeviceBuffer buffer(256);
  const int launched = cudasim::calls("cudaLaunchKernelExC");
  copy_async({{{buffer.data(), buffer.data(), 16, true}, {buffer.data() + 16, buffer.data() + 16, 16, true}}},
             stream.get());
  CHECK(cudasim::calls("cudaLaunchKernelExC") == launched);
  cudasim::fail("cudaLaunchKernelExC", cudaErrorLaunchFailure);
  CHECK_THROWS(
      copy_async({{{buffer.data(), buffer.data() + 64, 16, true}, {buffer.data() + 16, buffer.data() + 80, 16, true}}},
                 stream.get()),
      CudaError, "cudaErrorLaunchFailure, device/cuda_copies.cu:");
}
