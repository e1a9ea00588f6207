#pragma once
#include <span>
#include <vector>

#include "device/reduce.hpp"
#include "gpu/pool.hpp"

namespace accdp {

// Steps of a pool where a group is on several GPUs, some with several ranks (Pool::joins_gpus()). What all ranks of a
// GPU contribute to or want of another GPU passes the link between the two once, by one of the ranks, instead of once
// for each: with m ranks on each of g GPUs (g-1)/g bytes for each byte of the message, not m*(g-1)/g. All ranks of the
// node take them together, those of groups on one GPU too.

/// A range that ranks of the group contribute to, or that one of them has for the others, in slots.
struct LaneCut {
  std::size_t at, bytes;
};

/// One step: each rank reduces the lanes that it works for on its GPU over the slots of that GPU's ranks, into its next
/// slot. lanes: all of them, by number.
void sum_on_each_gpu(Context& context, Pool& pool, std::span<const LaneCut> lanes, const Reduction& how);
/// The contributions to a lane, which begin at `at` in slots: of each rank of the group, or of each GPU after
/// sum_on_each_gpu().
std::vector<const void*> contributions(const Pool& pool, int lane, std::size_t at, bool by_gpus);

/// Part of what ranks of the group show in their slots.
struct Shown {
  int holder;                 ///< whose slot it is in
  std::size_t at, bytes;      ///< there
  int lane;                   ///< who works for this lane brings it to its GPU,
  std::size_t relay_at;       ///< to this place in its slot
  std::byte* to;              ///< where this rank wants it; null: nowhere
  std::byte* also = nullptr;  ///< a second place
};
/// Copies what is shown. by_gpus: in a step of its own, for parts that many ranks want; all ranks of a group list the
/// same parts.
void take_shown(Context& context, Pool& pool, std::span<const Shown> parts, bool by_gpus);

}  // namespace accdp
