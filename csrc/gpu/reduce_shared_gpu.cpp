// Allreduce, reduce and reduce_scatter among ranks that share a GPU. Phases of an allreduce, for each piece of a slot:
//   1. each rank copies into its slot the slices that other ranks reduce;
//   2. each rank reduces its own slice from its own buffer and the others' slots, straight into its result and its next
//      slot;
//   3. each rank copies the others' slices out of their slots.
// Up to kFlatBytes every rank copies all of its data and reduces all slots itself: one step instead of two.
// All ranks get the same bits: sources are in rank order, whoever reduces.
// Cost for k ranks of S bytes: 2*ceil(S/slot) steps; 2*S*(k-1)/k + S/k copied and S reduced per rank.
#include "device/cuda_reduce.hpp"
#include "gpu/shared_gpu.hpp"

namespace accdp {
namespace {

constexpr std::size_t kFlatBytes = 256 << 10;
constexpr std::size_t kLine = 256;

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
  const std::size_t each = (in.size() / k + kLine) / kLine * kLine;  // the last ranks' slices may be shorter, or empty
  std::byte* slot = pool.open(c);
  for (int rank = 0; rank < k; ++rank) {
    const ConstBytes part = piece(in, rank * each, each);
    if (rank != me) copy_async(slot + rank * each, part.data(), part.size(), pool.stream());
  }
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

}  // namespace

void reduce_shared_gpu(Context& c, Pool& pool, ConstBytes in, Bytes out, const Reduction& how, int receiver) {
  const bool wanted = receiver < 0 || receiver == c.local_rank();
  if (in.size() <= kFlatBytes) return reduce_flat(c, pool, in, out, how, wanted);
  for (std::size_t at = 0; at < in.size(); at += pool.slot_bytes())
    reduce_piece(c, pool, piece(in, at, pool.slot_bytes()), piece(out, at, pool.slot_bytes()), how, wanted);
}

void reduce_scatter_shared_gpu(Context& c, Pool& pool, const std::vector<ConstBytes>& ins, Bytes out,
                               const Reduction& how) {
  const int me = c.local_rank();
  std::vector<ConstBytes> blocks = ins;
  blocks[me] = {};
  std::size_t longest = 0;
  for (const ConstBytes& block : ins) longest = std::max(longest, block.size());
  in_pieces(c, pool, blocks, longest, [&](std::size_t at, std::size_t most) {
    const Bytes part = piece(out, at, most);
    if (part.empty()) return;
    std::vector<const void*> sources;
    for (int rank = 0; rank < c.local_size(); ++rank)
      sources.push_back(rank == me ? ins[me].data() + at : pool.slot(rank) + me * most);
    reduce_async(part.data(), nullptr, sources, elements(part.size(), how), how, pool.stream());
  });
}

}  // namespace accdp
