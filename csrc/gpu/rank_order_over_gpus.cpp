// Reductions with the same bits wherever the ranks are, on device memory of ranks in several GPU groups: those of
// coll/reduce_in_rank_order.cpp, with a kernel that equals the host's loop. Each element is reduced by one rank, over
// the contributions of all ranks in the order of their numbers, which travel as they are. In pieces of the message:
//   1. every rank hands every other the slice of which that one is the owner (moves_over_gpus.cpp), which reduces it;
//   2. the results go to all ranks (blocks_over_gpus.cpp) or to the receiver.
// Cost for p ranks on n nodes, k on each, S bytes: S*(p-1)/p bytes into the memory of each rank, of which those from
// its own GPU group pass no bus; k*S*(n-1)/n + S*(n-1)/n bytes out of a node.
#include <algorithm>

#include "base/rounding.hpp"
#include "coll/algorithms.hpp"
#include "device/cuda_reduce.hpp"
#include "gpu/gpu_pipeline.hpp"
#include "gpu/shared_gpu.hpp"

namespace accdp {
namespace {

constexpr std::size_t kMostPiece = 64 << 20;  // of a message: as much device memory is taken for contributions

/// How long the longest of `count` nearly equal parts is.
std::size_t part_of(std::size_t bytes, std::size_t count) {
  return std::max(device_aligned(ceil_div(bytes, count)), kDeviceAlign);
}
/// The same for as many as are needed for parts of about `most`.
std::size_t part_up_to(std::size_t bytes, std::size_t most) { return part_of(bytes, ceil_div(bytes, most)); }

/// In memory of the hierarchy, which outlives a call that failed with work under way.
Bytes room(DeviceBuffer& buffer, std::size_t bytes, const Pool& pool) {
  grow(buffer, bytes, pool.stream());
  return {buffer.data(), bytes};
}

/// ins[r]: this rank's contribution to what rank r reduces, at most `longest` bytes. This rank's is as long as
/// `result`.
void exchange_and_reduce(Context& c, Pool& pool, GpuHierarchy& hierarchy, const std::vector<ConstBytes>& ins,
                         Bytes result, std::size_t longest, const Reduction& how) {
  const std::size_t each = device_aligned(result.size());
  const Bytes contributions = room(hierarchy.contributions, ins.size() * each, pool);
  std::vector<Bytes> outs;
  std::vector<const void*> sources;
  for (std::size_t rank = 0; rank < ins.size(); ++rank) {
    outs.push_back(contributions.subspan(rank * each, result.size()));
    sources.push_back(outs.back().data());
  }
  move_over_gpus(c, pool, hierarchy, ins, outs, longest);
  reduce_async(result.data(), nullptr, sources, result.size() / element_bytes(how.type), how, pool.stream());
}

}  // namespace

void reduce_in_rank_order_over_gpus(Context& c, Pool& pool, GpuHierarchy& hierarchy, ConstBytes in, Bytes out,
                                    const Reduction& how, int receiver) {
  const int ranks = c.topology().size(), me = c.topology().rank();
  const bool wanted = receiver < 0 || receiver == me;
  const std::size_t each = part_up_to(in.size(), kMostPiece);
  c.note({"gpu_rank_order", ranks, each});
  const Bytes sum = wanted ? Bytes() : room(hierarchy.unwanted, part_of(each, ranks), pool);
  for (std::size_t at = 0; at < in.size(); at += each) {
    const ConstBytes part = piece(in, at, each);
    const std::size_t slice = part_of(part.size(), ranks);
    std::vector<ConstBytes> ins;
    std::vector<Bytes> results;
    for (int rank = 0; rank < ranks; ++rank) {
      ins.push_back(piece(part, rank * slice, slice));
      results.push_back(wanted ? piece(piece(out, at, each), rank * slice, slice) : Bytes());
    }
    const Bytes mine = wanted ? results[me] : sum.first(ins[me].size());
    exchange_and_reduce(c, pool, hierarchy, ins, mine, slice, how);
    if (receiver < 0) {
      allgather_over_gpus(c, pool, hierarchy, mine, results);
      continue;
    }
    std::vector<ConstBytes> parcels(ranks);
    parcels[receiver] = mine;
    move_over_gpus(c, pool, hierarchy, parcels, results, slice);
  }
}

void reduce_scatter_in_rank_order_over_gpus(Context& c, Pool& pool, GpuHierarchy& hierarchy,
                                            const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how) {
  std::size_t longest = 0;
  for (const ConstBytes& block : ins) longest = std::max(longest, block.size());
  const std::size_t each = part_up_to(longest, kMostPiece / ins.size());
  c.note({"gpu_rank_order", c.topology().size(), each});
  for (std::size_t at = 0; at < longest; at += each) {
    std::vector<ConstBytes> pieces;
    for (const ConstBytes& block : ins) pieces.push_back(piece(block, at, each));
    exchange_and_reduce(c, pool, hierarchy, pieces, piece(out, at, each), each, how);
  }
}

}  // namespace accdp
