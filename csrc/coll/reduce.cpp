// Allreduce and reduce. Phases:
//   1. on the node, up to `flat_bytes`: each rank writes its data into its slot and reduces all slots
//      itself, in rank order (1 step); above, chunk by chunk: each rank hands every other rank the
//      slice that the other one reduces, and in the next step its own, reduced;
//   2. between nodes, as cost.hpp chooses: reduce_between_leaders.cpp, and a broadcast on each node; or
//      reduce_over_nodes.cpp.
// All ranks get the same bits: each element is reduced by one rank, or by all in the same order.
// Cost: ceil(S/c) + 1 steps on one node; S*(nodes-1) bytes out of and into each node for short messages.
#include <optional>

#include "base/rounding.hpp"
#include "coll/algorithms.hpp"
#include "coll/leader_pieces.hpp"
#include "node/copies.hpp"

namespace accdp {
namespace {

struct Slice {
  std::size_t begin, bytes;
};

/// Slice i of k nearly equal ones of `bytes`, cut at multiples of a cache line; none is longer than the first.
Slice slice(std::size_t bytes, int i, int k) {
  const std::size_t each = (bytes + k * kLine - 1) / (k * kLine) * kLine;
  const std::size_t begin = std::min(bytes, i * each);
  return {begin, std::min(bytes - begin, each)};
}

void reduce_flat(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) {
  const int me = c.local_rank();
  if (receiver == me)
    c.open_unwritten();
  else
    c.write(c.open(in.size()), in, receiver);
  c.publish();
  if (receiver >= 0 && receiver != me) return;
  c.await_all();
  const std::span<const void*> sources = c.sources();
  for (int rank = 0; rank < c.local_size(); ++rank) sources[rank] = rank == me ? in.data() : c.slot(rank);
  reduce(out.data(), sources, in.size() / element_bytes(how.type), how);
}

/// The same with one receiver, short: all others go ahead.
void reduce_ahead(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) {
  const int me = c.local_rank();
  if (receiver != me) {
    c.write(c.open_short(), in, receiver);
    return c.publish_ahead();
  }
  c.open_unwritten();
  c.publish();
  const std::span<const void*> sources = c.sources();
  for (int rank = 0; rank < c.local_size(); ++rank) sources[rank] = rank == me ? in.data() : c.short_slot(rank);
  reduce(out.data(), sources, in.size() / element_bytes(how.type), how);
}

/// Reduces into a block that stays in the first cache, and from there into the slot: what the slot is written by is up
/// to the writer then. take(at, block): before the next one.
template <class Take>
void reduce_by_blocks(SlotWriter& writer, std::byte* slot, std::span<const void*> sources, std::size_t bytes,
                      const Reduction& how, Take take) {
  alignas(64) std::byte memory[16 << 10];
  for (std::size_t at = 0; at < bytes; at += sizeof memory) {
    const ConstBytes block(memory, std::min(sizeof memory, bytes - at));
    reduce(memory, sources, block.size() / element_bytes(how.type), how);
    for (const void*& source : sources) source = static_cast<const std::byte*>(source) + block.size();
    writer.write_part(slot + at, memory, block.size(), bytes);
    take(at, block);
  }
}

/// Longer ones, in chunks. In a step a rank shows the slices of a chunk that others reduce and, where its slot has room
/// for its own, the result of that of the chunk before: one step for each chunk, and one for the last result.
void reduce_in_slices(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) {
  const int k = c.local_size(), me = c.local_rank();
  const bool wanted = receiver < 0 || receiver == me;
  const bool past_caches =
      in.data() == out.data() ? is_past_shared_cache(in.size() * k) : is_past_own_caches(in.size());
  const std::size_t most = reduce_chunk_bytes(k, c.slot_bytes()), chunks = ceil_div(in.size(), most);
  const std::size_t share = slice(std::min(most, in.size()), 0, k).bytes;
  const auto place = [&](int rank) { return rank * share; };
  const auto slice_of = [&](std::size_t chunk, int rank) {
    const Slice s = slice(std::min(most, in.size() - chunk * most), rank, k);
    return Slice{chunk * most + s.begin, s.bytes};
  };
  const auto for_others = [&](std::size_t chunk, auto copy_slice) {
    for (int rank = 0; rank < k; ++rank)
      if (rank != me) copy_slice(rank, slice_of(chunk, rank));
  };
  const auto show = [&](std::size_t chunk, std::byte* slot) {
    for_others(chunk, [&](int rank, Slice s) { c.write(slot + place(rank), in.subspan(s.begin, s.bytes), rank); });
  };
  const auto take = [&](std::size_t chunk) {
    for_others(chunk, [&](int rank, Slice s) {
      copy_out(out.data() + s.begin, c.slot(rank) + place(rank), s.bytes, past_caches);
    });
  };
  show(0, c.open(k * share));
  c.publish();
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    c.await_all();
    if (chunk > 0 && wanted) take(chunk - 1);
    const Slice own = slice_of(chunk, me);
    const std::span<const void*> sources = c.sources();
    for (int rank = 0; rank < k; ++rank) sources[rank] = rank == me ? in.data() + own.begin : c.slot(rank) + place(me);
    std::byte* mine = c.open(k * share);
    std::byte* const sum = receiver == me ? out.data() + own.begin : mine + place(me);
    SlotWriter& writer = c.writer(receiver);
    const bool by_blocks = receiver != me && writer.prefers_copies(own.bytes);
    if (by_blocks)
      reduce_by_blocks(writer, sum, sources, own.bytes, how, [&](std::size_t at, ConstBytes block) {
        if (wanted) copy_out(out.data() + own.begin + at, block.data(), block.size(), past_caches);
      });
    else
      reduce(sum, sources, own.bytes / element_bytes(how.type), how);
    if (chunk + 1 < chunks) show(chunk + 1, mine);
    c.publish();
    if (wanted && !by_blocks && receiver != me) copy_out(out.data() + own.begin, sum, own.bytes, past_caches);
  }
  if (!wanted) return;
  c.await_all();
  take(chunks - 1);
}

}  // namespace

void reduce_on_node(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) {
  if (c.local_size() == 1) {
    c.note({"alone"});
    const void* alone[] = {in.data()};
    if (out.data() != in.data() || how.divisor > 1) reduce(out.data(), alone, in.size() / element_bytes(how.type), how);
    return;
  }
  if (in.size() <= c.flat_bytes()) {
    c.note({"flat", 1, in.size()});
    if (receiver >= 0 && c.may_go_ahead(in.size())) return reduce_ahead(c, in, out, how, receiver);
    return reduce_flat(c, in, out, how, receiver);
  }
  c.note({"slices", 1, std::min(in.size(), reduce_chunk_bytes(c.local_size(), c.slot_bytes()))});
  reduce_in_slices(c, in, out, how, receiver);
}

namespace {

/// The way to go between nodes. All ranks must choose alike, so not by what one of them measured.
Choice choice_for(const Context& c, const Operand& operand, bool receiver_only) {
  return receiver_only ? choose_reduce(operand, c.shape(), c.machine())
                       : choose_allreduce(operand, c.shape(), c.machine(), c.asked().allreduce);
}

/// Piece by piece, so that little memory is needed also for long messages, for which auto goes another way.
void allreduce_by_leaders(Context& c, ConstBytes in, Bytes out, const Reduction& how, ReduceAlgorithm algorithm) {
  const Topology& t = c.topology();
  const int leader = t.local_of(t.leader(t.node()));
  const std::size_t most = leader_piece_bytes(algorithm, t.nodes()), longest = std::min(in.size(), most);
  c.note({name_of(algorithm), 1, leader_message_bytes(algorithm, {longest, partial_width(how.type)}, t.nodes())});
  std::optional<LeaderReduction> between;
  if (t.is_leader()) between.emplace(c, how, algorithm, longest);
  std::size_t done = 0;
  do {
    const std::size_t n = std::min(most, in.size() - done);
    const Bytes part = out.subspan(done, n);
    reduce_on_node(c, in.subspan(done, n), part, how.partial(), leader);
    if (between) between->run(part);
    bcast_on_node(c, part, leader);
    done += n;
  } while (done < in.size());
}

}  // namespace

void reduce_to(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) {
  const Topology& t = c.topology();
  if (t.nodes() == 1) return reduce_on_node(c, in, out, how, receiver < 0 ? -1 : t.local_of(receiver));
  const Operand operand(in.size(), partial_width(how.type));
  const auto [algorithm, lanes] = choice_for(c, operand, receiver >= 0);
  if (algorithm == ReduceAlgorithm::kDirect && !c.has_met() && reduces_with_signatures(in.size(), c.shape()))
    return reduce_with_signatures(c, in, out, how, receiver);
  c.meet();
  if (algorithm == ReduceAlgorithm::kPipeline) return reduce_over_nodes(c, in, out, how, receiver, lanes);
  if (receiver < 0) return allreduce_by_leaders(c, in, out, how, algorithm);
  c.note({name_of(algorithm), 1, leader_message_bytes(algorithm, operand, t.nodes())});
  // The lowest rank leads on every node, so that the same ranks speak in all phases.
  const int leader = t.leader(t.node());
  const bool leads = t.is_leader();
  Bytes sum = out;
  if (leads && receiver != t.rank()) sum = c.scratch(in.size());  // its caller gave no place for a result
  reduce_on_node(c, in, sum, how.partial(), t.local_of(leader));
  if (leads) LeaderReduction(c, how, algorithm, in.size()).run(sum, t.node_of(receiver));
  if (!t.is_near(receiver) || receiver == leader) return;
  // The result stands at the leader of the receiver's node; the node's other ranks only keep step.
  if (!leads && receiver != t.rank()) sum = c.scratch(in.size());
  bcast_on_node(c, sum, t.local_of(leader));
}

void agree_on(Context& c, std::span<double> numbers, ReduceOp op) {
  const Bytes own = std::as_writable_bytes(numbers);
  const Bytes room = c.scratch(own.size());  // where MPI may write after a failure
  copy(room, own);
  reduce_to(c, room, room, {Datatype::kF64, op}, -1);
  copy(own, room);
}

}  // namespace accdp
