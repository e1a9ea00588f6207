// Bcast, allgather, gather, scatter and alltoall among ranks that share a GPU. One phase, repeated for pieces of a
// slot: whoever has data copies it into its slot, and after a step whoever wants it copies it out. Cost for S bytes
// that a rank hands in: ceil(S/slot) steps; each byte is read and written twice, the second time from the cache where
// slots are small. Of bcast and allgather among several ranks on each of several GPUs, one rank of a GPU brings what is
// on another, a slice or block each, and the others get it from there: twice the steps, each byte once over a link.
#include <algorithm>
#include <cstring>

#include "gpu/gpu_steps.hpp"
#include "gpu/shared_gpu.hpp"

namespace accdp {
namespace {

Copy of_piece(const Bytes& block, std::size_t at, std::size_t most, const std::byte* from) {
  const Bytes part = piece(block, at, most);
  return {part.data(), from, part.size(), false};
}

/// Tells all ranks the sizes of all blocks, checks those for this rank, and returns the largest.
std::size_t longest_of_compared(Context& c, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs) {
  const int k = c.local_size(), me = c.local_rank();
  std::byte* const mine = c.open(k * sizeof(std::uint64_t));
  for (int to = 0; to < k; ++to) {
    const std::uint64_t bytes = ins[to].size();
    std::memcpy(mine + to * sizeof bytes, &bytes, sizeof bytes);
  }
  c.publish();
  c.await_all();
  std::size_t largest = 0;
  for (int from = 0; from < k; ++from)
    for (int to = 0; to < k; ++to) {
      std::uint64_t bytes;
      std::memcpy(&bytes, c.slot(from) + to * sizeof bytes, sizeof bytes);
      if (from != to) largest = std::max<std::size_t>(largest, bytes);
      if (to == me && bytes != outs[from].size())
        c.fail_mismatch(c.what() + ": " + c.describe(from) + " sends " + std::to_string(bytes) + " bytes to " +
                        c.describe(to) + ", which expects " + std::to_string(outs[from].size()));
    }
  return largest;
}

}  // namespace

void bcast_shared_gpu(Context& c, Pool& pool, Bytes data, int root) {
  const bool is_root = c.local_rank() == root;
  in_pieces(c, pool, {is_root ? ConstBytes(data) : ConstBytes()}, data.size(), [&](std::size_t at, std::size_t most) {
    const Bytes part = piece(data, at, most);
    const bool by_gpus = goes_by_gpus(pool, data.size());
    const std::size_t slices = by_gpus ? c.local_size() : 1, each = slice_bytes(part.size(), slices);
    std::vector<Shown> shown;
    for (std::size_t s = 0; s < slices; ++s) {
      const Bytes slice = piece(part, s * each, each);
      shown.push_back({root, s * each, slice.size(), static_cast<int>(s), s * each, is_root ? nullptr : slice.data()});
    }
    take_shown(c, pool, shown, by_gpus);
  });
}

void allgather_shared_gpu(Context& c, Pool& pool, ConstBytes in, const std::vector<Bytes>& outs) {
  const int me = c.local_rank();
  std::size_t longest = 0, total = 0;
  for (const Bytes& block : outs) {
    longest = std::max(longest, block.size());
    total += block.size();
  }
  const GpuGroups& gpus = pool.gpus();
  const bool by_gpus = goes_by_gpus(pool, total);
  auto show = [&](std::size_t at, std::size_t most) {
    std::vector<Shown> shown;
    for (int rank = 0; rank < c.local_size(); ++rank) {
      const Bytes part = piece(outs[rank], at, most);
      const std::vector<int>& brought = gpus.lanes_of(gpus.agent(gpus.mine(), rank));
      const auto place = std::find(brought.begin(), brought.end(), rank) - brought.begin();
      shown.push_back({rank, 0, part.size(), rank, place * most, rank == me ? nullptr : part.data()});
    }
    take_shown(c, pool, shown, by_gpus);
  };
  in_pieces(c, pool, {in}, longest, show, by_gpus ? gpus.most_lanes() : 1);
  copy_async(outs[me].data(), in.data(), in.size(), pool.stream());
}

void gather_shared_gpu(Context& c, Pool& pool, ConstBytes in, const std::vector<Bytes>& outs, int root) {
  const int me = c.local_rank();
  in_pieces(c, pool, {me == root ? ConstBytes() : in}, in.size(), [&](std::size_t at, std::size_t most) {
    std::vector<Copy> taken;
    for (int rank = 0; me == root && rank < c.local_size(); ++rank)
      if (rank != me) taken.push_back(of_piece(outs[rank], at, most, pool.slot(rank)));
    pool.copy(taken);
  });
  if (me == root) copy_async(outs[me].data(), in.data(), in.size(), pool.stream());
}

void scatter_shared_gpu(Context& c, Pool& pool, const std::vector<ConstBytes>& ins, Bytes out, int root) {
  const int me = c.local_rank();
  std::vector<ConstBytes> blocks(c.local_size());
  if (me == root) {
    blocks = ins;
    blocks[me] = {};
  }
  in_pieces(c, pool, blocks, out.size(), [&](std::size_t at, std::size_t most) {
    if (me != root) pool.copy({{of_piece(out, at, most, pool.slot(root) + me * most)}});
  });
  if (me == root) copy_async(out.data(), ins[me].data(), out.size(), pool.stream());
}

void alltoall_shared_gpu(Context& c, Pool& pool, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs) {
  const int me = c.local_rank();
  const std::size_t longest = longest_of_compared(c, ins, outs);
  std::vector<ConstBytes> blocks = ins;
  blocks[me] = {};
  in_pieces(c, pool, blocks, longest, [&](std::size_t at, std::size_t most) {
    std::vector<Copy> taken;
    for (int rank = 0; rank < c.local_size(); ++rank)
      if (rank != me) taken.push_back(of_piece(outs[rank], at, most, pool.slot(rank) + me * most));
    pool.copy(taken);
  });
  copy_async(outs[me].data(), ins[me].data(), ins[me].size(), pool.stream());
}

}  // namespace accdp
