#include "coll/apart.hpp"

#include <algorithm>

#include "coll/algorithms.hpp"

namespace accdp {
namespace {

/// From the first byte of all blocks to the last.
template <class Block>
ConstBytes extent(std::span<const Block> blocks) {
  const std::byte *first = nullptr, *last = nullptr;
  for (const Block& block : blocks) {
    if (block.empty()) continue;
    first = first ? std::min<const std::byte*>(first, block.data()) : block.data();
    last = std::max<const std::byte*>(last, block.data() + block.size());
  }
  return {first, last};
}

}  // namespace

bool is_overwritten(std::span<const ConstBytes> ins, std::span<const Bytes> outs, const MayMeet& may_meet) {
  if (!overlap(extent(ins), extent(outs))) return false;  // as usual: not every pair needs a look
  for (int i = 0; i < static_cast<int>(ins.size()); ++i)
    for (int o = 0; o < static_cast<int>(outs.size()); ++o) {
      if (ins[i].empty() || outs[o].empty()) continue;
      const bool is_in_place = ins[i].data() == outs[o].data() && may_meet(i, o);
      if (!is_in_place && overlap(ins[i], outs[o])) return true;
    }
  return false;
}

std::vector<ConstBytes> copies(std::span<const ConstBytes> blocks, Bytes room) {
  std::vector<ConstBytes> made;
  for (const ConstBytes& block : blocks) {
    std::ranges::copy(block, room.begin());
    made.emplace_back(room.first(block.size()));
    room = room.subspan(block.size());
  }
  return made;
}

}  // namespace accdp
