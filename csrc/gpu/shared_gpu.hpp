#pragma once
#include <vector>

#include "base/rounding.hpp"
#include "gpu/pool.hpp"

namespace accdp {

// The collectives among ranks that share a GPU, or are on GPUs that reach each other: all ranks of the context, with a
// pool that is shared. Buffers are device memory; the work is put on the pool's stream and goes on after the call
// returned. in_rank_order: every element is reduced over all ranks at once, on several GPUs too.

void bcast_shared_gpu(Context& context, Pool& pool, Bytes data, int root);
void reduce_shared_gpu(Context& context, Pool& pool, ConstBytes in, Bytes out, const Reduction& how, int receiver,
                       bool in_rank_order);
void allgather_shared_gpu(Context& context, Pool& pool, ConstBytes in, const std::vector<Bytes>& outs);
void reduce_scatter_shared_gpu(Context& context, Pool& pool, const std::vector<ConstBytes>& ins, Bytes out,
                               const Reduction& how, bool in_rank_order);
void gather_shared_gpu(Context& context, Pool& pool, ConstBytes in, const std::vector<Bytes>& outs, int root);
void scatter_shared_gpu(Context& context, Pool& pool, const std::vector<ConstBytes>& ins, Bytes out, int root);
void alltoall_shared_gpu(Context& context, Pool& pool, const std::vector<ConstBytes>& ins,
                         const std::vector<Bytes>& outs);

/// Part of a block; empty behind its end.
template <class Block>
Block piece(const Block& block, std::size_t at, std::size_t most) {
  return at < block.size() ? block.subspan(at, std::min(most, block.size() - at)) : Block{};
}

/// A message up to this length takes as few steps as it can; of a longer one bytes count, and what passes between GPUs
/// passes once for all ranks of a GPU (gpu_steps.hpp).
constexpr std::size_t kFlatDeviceBytes = 256 << 10;
inline bool goes_by_gpus(const Pool& pool, std::size_t bytes) { return bytes > kFlatDeviceBytes && pool.joins_gpus(); }

/// Where the slices of `bytes` begin, of which each of `count` ranks has one; the last may be shorter, or empty.
inline std::size_t slice_bytes(std::size_t bytes, std::size_t count) {
  return (bytes / count / kDeviceAlign + 1) * kDeviceAlign;
}

/// Copies that bring block b's piece at `at` to b * most of the slot; in one go what lies side by side on both sides.
std::vector<Copy> copies_of_pieces(std::byte* slot, const std::vector<ConstBytes>& blocks, std::size_t at,
                                   std::size_t most);

/// Piece by piece: every rank copies the next piece of each of its blocks into its slot, and once all have, takes what
/// it wants of the slots: take(at, most), where block b's piece lies at b * most of its rank's slot. All ranks give as
/// many blocks; `longest` is the largest block of any rank. shares: a slot has room for at least so many pieces.
template <class Take>
void in_pieces(Context& context, Pool& pool, const std::vector<ConstBytes>& blocks, std::size_t longest, Take take,
               std::size_t shares = 1) {
  if (longest == 0) return context.meet();
  const std::size_t room = round_down(pool.slot_bytes() / std::max(blocks.size(), shares), kDeviceAlign);
  // Short blocks lie no farther apart than need be: those of one array do so as they did there.
  const std::size_t most = std::min(room, device_aligned(longest));
  for (std::size_t at = 0; at < longest; at += most) {
    pool.copy(copies_of_pieces(pool.open(context), blocks, at, most));
    pool.publish(context);
    pool.await_all(context);
    take(at, most);
  }
}

}  // namespace accdp
