// Allreduce, reduce and reduce_scatter among ranks that share a GPU. Phases of an allreduce, for each piece of a slot:
//   1. each rank copies into its slot the slices that other ranks reduce;
//   2. each rank reduces its own slice from its own buffer and the others' slots, straight into its result and its next
//      slot;
//   3. each rank copies the others' slices out of their slots.
// A step has a phase of each of three pieces: ranks wait for each other once for each piece.
// Up to kFlatDeviceBytes every rank copies all of its data and reduces all slots itself: one step instead of two.
// All ranks get the same bits: sources are in rank order, whoever reduces.
// Cost for k ranks of S bytes: ceil(S/slot)+1 steps; 2*S*(k-1)/k + S/k copied and S reduced per rank.
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

/// A message in pieces, and these in slices of one size, of which each rank reduces one. The last may be cut short, or
/// empty.
struct Slices {
  std::size_t each, ranks;
  std::size_t piece_bytes() const { return each * ranks; }
  template <class Block>
  Block of(const Block& block, std::size_t at, std::size_t rank) const {
    return piece(block, at + rank * each, each);
  }
};

Slices slices_of(std::size_t bytes, std::size_t most, std::size_t ranks) {
  const std::size_t pieces = ceil_div(bytes, round_down(most / ranks, kDeviceAlign) * ranks);
  return {device_aligned(ceil_div(bytes, pieces * ranks)), ranks};
}

/// In each step a rank has three pieces in hand: it takes the sums of one, reduces its slice of the next, and gives of
/// the one after that. The slice of its slot that nobody else reduces is where its sums are.
void reduce_in_turns(Context& c, Pool& pool, ConstBytes in, Bytes out, const Reduction& how, bool wanted) {
  const std::size_t k = c.local_size(), me = c.local_rank();
  const Slices slices = slices_of(in.size(), pool.slot_bytes(), k);
  const std::size_t each = slices.each, whole = slices.piece_bytes();
  std::vector<const std::byte*> shown(k);  // the slots of the step before
  std::vector<Copy> copies;                // of a step: they touch nothing of its sums
  const auto take = [&](std::size_t at) {
    for (std::size_t rank = 0; wanted && rank < k; ++rank) {
      const Bytes part = slices.of(out, at, rank);
      if (rank != me) copies.push_back({part.data(), shown[rank] + rank * each, part.size(), false});
    }
  };
  const auto sum = [&](std::size_t at, std::byte* slot) {
    const ConstBytes mine = slices.of(in, at, me);
    std::vector<const void*> sources;
    for (std::size_t rank = 0; rank < k; ++rank) sources.push_back(rank == me ? mine.data() : shown[rank] + me * each);
    reduce_async(slot + me * each, wanted ? slices.of(out, at, me).data() : nullptr, sources,
                 elements(mine.size(), how), how, pool.stream());
  };
  const auto give = [&](std::size_t at, std::byte* slot) {
    const std::size_t behind = (me + 1) * each;  // where the slices after its own begin
    const ConstBytes before = piece(in, at, me * each), after = piece(in, at + behind, whole - behind);
    copies.push_back({slot, before.data(), before.size(), true});
    copies.push_back({slot + behind, after.data(), after.size(), true});
  };
  std::size_t taken = 0, summed = 0, given = 0;
  while (summed < in.size()) {
    for (std::size_t rank = 0; rank < k; ++rank) shown[rank] = pool.slot(rank);
    std::byte* const slot = pool.open(c);
    if (taken < summed) take(taken), taken += whole;
    if (summed < given) sum(summed, slot), summed += whole;
    if (given < in.size()) give(given, slot), given += whole;
    pool.copy(copies);
    copies.clear();
    pool.publish(c);
    pool.await_all(c);
  }
  for (std::size_t rank = 0; rank < k; ++rank) shown[rank] = pool.slot(rank);
  take(taken);
  pool.copy(copies);
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
  if (in_rank_order || !goes_by_gpus(pool, in.size())) return reduce_in_turns(c, pool, in, out, how, wanted);
  for (std::size_t at = 0; at < in.size(); at += pool.slot_bytes())
    reduce_piece_by_gpus(c, pool, piece(in, at, pool.slot_bytes()), piece(out, at, pool.slot_bytes()), how, receiver);
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
