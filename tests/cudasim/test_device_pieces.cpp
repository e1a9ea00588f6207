// How blocks of a caller's get into a slot: neighbours in one copy, but never from one allocation into the next.
#include <cstring>
#include <set>

#include "check.hpp"
#include "cudasim.hpp"
#include "gpu/shared_gpu.hpp"

using namespace accdp;

namespace {

constexpr std::size_t kBlock = 4096;

/// Copies the blocks' pieces and checks where they are; returns in how many copies.
int copies(const std::vector<ConstBytes>& blocks, std::size_t at, std::size_t most) {
  const Stream stream = make_stream();
  const DeviceBuffer slot(blocks.size() * most);
  std::memset(slot.data(), 0, slot.bytes());
  int made = 0;
  for (const Copy& one : copies_of_pieces(slot.data(), blocks, at, most)) {
    made += one.bytes > 0;
    copy_async(one.to, one.from, one.bytes, stream.get());
  }
  synchronize(stream.get());
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const ConstBytes part = piece(blocks[b], at, most);
    CHECK(part.empty() || std::memcmp(slot.data() + b * most, part.data(), part.size()) == 0);
    for (std::size_t i = part.size(); i < most; ++i) CHECK(slot.data()[b * most + i] == std::byte{0});
  }
  return made;
}

/// So many blocks side by side, each of other bytes.
std::vector<ConstBytes> blocks_of(const DeviceBuffer& array, std::size_t count) {
  std::vector<ConstBytes> blocks;
  for (std::size_t b = 0; b < count; ++b) {
    std::memset(array.data() + b * kBlock, static_cast<int>(b + 1), kBlock);
    blocks.emplace_back(array.data() + b * kBlock, kBlock);
  }
  return blocks;
}

void neighbours() {
  const DeviceBuffer array(5 * kBlock);
  std::vector<ConstBytes> blocks = blocks_of(array, 5);
  CHECK(copies(blocks, 0, kBlock) == 1);
  CHECK(copies(blocks, 0, kBlock / 2) == 5 && copies(blocks, kBlock / 2, kBlock / 2) == 5);  // parts of each
  CHECK(copies(blocks, 0, 2 * kBlock) == 5);                                                 // apart in the slot
  CHECK(copies(blocks, kBlock, kBlock) == 0);
  std::swap(blocks[0], blocks[1]);
  CHECK(copies(blocks, 0, kBlock) == 3);
  blocks = blocks_of(array, 5);
  blocks[2] = {};  // what stays with this rank
  CHECK(copies(blocks, 0, kBlock) == 2);
  blocks = blocks_of(array, 5);
  blocks[4] = blocks[4].first(7);
  CHECK(copies(blocks, 0, kBlock) == 1);
}

/// The system puts mappings side by side; the simulator refuses a copy over both, as CUDA does.
void neighbours_of_two_allocations() {
  std::vector<DeviceBuffer> buffers;
  std::set<const std::byte*> begins;
  for (int i = 0; i < 16; ++i) {
    buffers.emplace_back(kBlock);
    begins.insert(buffers.back().data());
  }
  int pairs = 0;
  for (const std::byte* first : begins) {
    if (!begins.contains(first + kBlock)) continue;
    CHECK(!is_one_allocation(first, first + kBlock) && is_one_allocation(first, first + kBlock - 1));
    CHECK(copies({{first, kBlock}, {first + kBlock, kBlock}}, 0, kBlock) == 2);
    ++pairs;
  }
  CHECK(pairs > 0);
}

}  // namespace

int main() {
  setenv("CUDASIM_SIDE_BY_SIDE", "1", 1);
  neighbours();
  neighbours_of_two_allocations();
}
