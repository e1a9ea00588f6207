// Allreduce, reduce and reduce_scatter among ranks that share a GPU. Phases of an allreduce, for each piece of a slot:
//   1. each rank copies into its slot the slices that other ranks reduce;
//   2. each rank reduces its own slice from its own buffer and the others' slots, straight into its result and its next
//      slot;
//   3. each rank copies the others' slices out of their slots.
// Up to kFlatDeviceBytes every rank copies all of its data and reduces all slots itself: one step instead of two.
// All ranks get the same bits: sources are in rank order, whoever reduces.
// Cost for k ranks of S bytes: 2*ceil(S/slot) steps; 2*S*(k-1)/k + S/k copied and S reduced per rank.
// On several GPUs, some with several ranks, slices longer than that are reduced over the ranks of each GPU first, and
// handed out by one rank of each (gpu_steps.hpp), unless ranks shall be taken in order: 4 steps a piece. With m ranks
// on each of g GPUs 2*S*(g-1)/g bytes pass over the link of a GPU, else m times as many. 16-bit floats are rounded
// twice.
#include "device/cuda_reduce.hpp"
#include "gpu/gpu_steps.hpp"
#include "gpu/shared_gpu.hpp"

namespace accdp {
namespace {

std::size_t elements(std::size_t bytes, const Reduction& how) { return bytes / element_bytes(how.type); }

void reduce_flat(Context& c, Pool& pool, ConstBytes in, Bytes out, const Reduction& how, bool wanted) {
  in_pieces(c, pool, {in}, in.size(), [&](std::size_t at, std::size_t most) {
    if (!wanted) return;
    std::vector<const void*> sources;
    for (int rank = 0; rank < c.local_size(); ++rank) sources.push_back(pool.slot(rank));
    const Bytes part = piece(out, at, most);
    reduce_async(part.data(), nullptr, sources, elements(part.size(), how), how, pool.stream());
  });
}

void reduce_piece(Context& c, Pool& pool, ConstBytes in, Bytes out, const Reduction& how, bool wanted) {
  const int k = c.local_size(), me = c.local_rank();
  const std::size_t each = slice_bytes(in.size(), k);
  std::byte* slot = pool.open(c);
  const std::size_t behind = (me + 1) * each;  // where the slices after its own begin
  const ConstBytes before = piece(in, 0, me * each), after = piece(in, behind, in.size());
  copy_async(slot, before.data(), before.size(), pool.stream());
  copy_async(slot + behind, after.data(), after.size(), pool.stream());
  pool.publish(c);
  pool.await_all(c);
  const ConstBytes mine = piece(in, me * each, each);
  std::vector<const void*> sources;
  for (int rank = 0; rank < k; ++rank) sources.push_back(rank == me ? mine.data() : pool.slot(rank) + me * each);
  slot = pool.open(c);
  reduce_async(slot + me * each, wanted ? piece(out, me * each, each).data() : nullptr, sources,
               elements(mine.size(), how), how, pool.stream());
  pool.publish(c);
  pool.await_all(c);
  for (int rank = 0; wanted && rank < k; ++rank) {
    const Bytes part = piece(out, rank * each, each);
    if (rank != me) copy_async(part.data(), pool.slot(rank) + rank * each, part.size(), pool.stream());
  }
}

void reduce_piece_by_gpus(Context& c, Pool& pool, ConstBytes in, Bytes out, const Reduction& how, int receiver) {
  const int k = c.local_size(), me = c.local_rank();
  const bool wanted = receiver < 0 || receiver == me;
  const std::size_t each = slice_bytes(in.size(), k);
  std::vector<LaneCut> cuts;
  std::vector<Shown> sums;
  for (int rank = 0; rank < k; ++rank) {
    const std::size_t at = rank * each, bytes = piece(in, at, each).size();
    cuts.push_back({at, bytes});
    sums.push_back({rank, at, bytes, rank, at, wanted && rank != me ? piece(out, at, each).data() : nullptr});
  }
  copy_async(pool.open(c), in.data(), in.size(), pool.stream());
  pool.publish(c);
  pool.await_all(c);
  sum_on_each_gpu(c, pool, cuts, how);
  const std::vector<const void*> sources = contributions(pool, me, cuts[me].at, true);
  reduce_async(pool.open(c) + cuts[me].at, wanted ? piece(out, cuts[me].at, each).data() : nullptr, sources,
               elements(cuts[me].bytes, how), how, pool.stream());
  pool.publish(c);
  pool.await_all(c);
  take_shown(c, pool, sums, receiver < 0);
}

}  // namespace

void reduce_shared_gpu(Context& c, Pool& pool, ConstBytes in, Bytes out, const Reduction& how, int receiver,
                       bool in_rank_order) {
  const bool wanted = receiver < 0 || receiver == c.local_rank();
  if (in.size() <= kFlatDeviceBytes) return reduce_flat(c, pool, in, out, how, wanted);
  const bool by_gpus = !in_rank_order && goes_by_gpus(pool, in.size());
  for (std::size_t at = 0; at < in.size(); at += pool.slot_bytes()) {
    const ConstBytes part = piece(in, at, pool.slot_bytes());
    const Bytes result = piece(out, at, pool.slot_bytes());
    if (by_gpus)
      reduce_piece_by_gpus(c, pool, part, result, how, receiver);
    else
      reduce_piece(c, pool, part, result, how, wanted);
  }
}

void reduce_scatter_shared_gpu(Context& c, Pool& pool, const std::vector<ConstBytes>& ins, Bytes out,
                               const Reduction& how, bool in_rank_order) {
  const int me = c.local_rank();
  std::size_t longest = 0, total = 0;
  for (const ConstBytes& block : ins) {
    longest = std::max(longest, block.size());
    total += block.size();
  }
  const bool by_gpus = !in_rank_order && goes_by_gpus(pool, total);
  std::vector<ConstBytes> blocks = ins;
  if (!by_gpus) blocks[me] = {};
  in_pieces(c, pool, blocks, longest, [&](std::size_t at, std::size_t most) {
    if (by_gpus) {
      std::vector<LaneCut> cuts;
      for (std::size_t rank = 0; rank < ins.size(); ++rank)
        cuts.push_back({rank * most, piece(ins[rank], at, most).size()});
      sum_on_each_gpu(c, pool, cuts, how);
    }
    const Bytes part = piece(out, at, most);
    if (part.empty()) return;
    std::vector<const void*> sources = contributions(pool, me, me * most, by_gpus);
    if (!by_gpus) sources[me] = ins[me].data() + at;
    reduce_async(part.data(), nullptr, sources, elements(part.size(), how), how, pool.stream());
  });
}

}  // namespace accdp
