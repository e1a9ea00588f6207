// Baselines: the MPI library's own collectives over all ranks of the group. The library takes one memory for all
// blocks; blocks that lie apart are copied together. Its counts are ints, so long messages go in pieces. Averages are
// its sums, divided here. Which bits come out, and whether they are the same on all ranks, is the library's affair.
#include "coll/mpi_baselines.hpp"

#include <cstring>
#include <optional>

#include "base/error.hpp"
#include "coll/algorithms.hpp"

namespace accdp {
namespace {

using Call = Wire::NativeCall;
constexpr std::size_t kMost = std::size_t{1} << 30;  // bytes of one call

void run(Context& c, const Call& call) {
  c.check_late();
  Wire::Request request = c.wire().start(call);
  try {
    c.wait(request);
  } catch (...) {
    c.abandon(request);
    throw;
  }
}

/// In memory that outlives a failure, because MPI may still look there.
std::span<int> numbers(Context& c, std::size_t count) {
  return {reinterpret_cast<int*>(c.scratch(count * sizeof(int)).data()), count};
}

/// Blocks of all ranks as MPI takes them: one memory, counts and offsets in units of `unit` bytes.
struct Table {
  std::span<int> counts, offsets;
  std::size_t bytes = 0;
};
template <class Block>
Table table_of(Context& c, const std::vector<Block>& blocks, std::size_t unit) {
  Table table{numbers(c, blocks.size()), numbers(c, blocks.size())};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    table.counts[i] = static_cast<int>(blocks[i].size() / unit);
    table.offsets[i] = static_cast<int>(table.bytes / unit);
    table.bytes += blocks[i].size();
  }
  if (table.bytes > kMost)
    throw UsageError(c.what() + " by ACCDP_BASELINE=mpi: blocks of " + std::to_string(table.bytes) +
                     " bytes together: expected at most 1 GiB");
  return table;
}

/// The blocks as one memory; nothing where they lie apart.
template <class Block>
std::optional<Block> joined(const std::vector<Block>& blocks) {
  Block all;
  for (const Block& block : blocks) {
    if (block.empty()) continue;
    if (!all.empty() && all.data() + all.size() != block.data()) return std::nullopt;
    all = all.empty() ? block : Block(all.data(), all.size() + block.size());
  }
  return all;
}

/// What is sent, as one memory that does not overlap `out`, nor begins where that does: MPI libraries refuse this even
/// of an empty one.
ConstBytes together(Context& c, const std::vector<ConstBytes>& ins, std::size_t bytes, ConstBytes out) {
  if (const auto all = joined(ins); all && all->data() != out.data() && !overlap(*all, out)) return *all;
  const Bytes room = c.scratch(bytes);
  std::byte* at = room.data();
  for (const ConstBytes& block : ins)
    if (!block.empty()) at = static_cast<std::byte*>(std::memcpy(at, block.data(), block.size())) + block.size();
  return room;
}

void apart(ConstBytes from, const std::vector<Bytes>& outs) {
  for (const Bytes& block : outs) {
    copy(block, from.first(block.size()));
    from = from.subspan(block.size());
  }
}

void divide(Bytes sums, const Reduction& how) {
  const void* alone[] = {sums.data()};
  if (how.op == ReduceOp::kAvg) reduce(sums.data(), alone, sums.size() / element_bytes(how.type), how);
}

void note(Context& c) { c.note({name_of(BcastAlgorithm::kMpi)}); }
void begin(Context& c) {
  note(c);
  c.meet_everywhere();
}

class MpiCollectives final : public Collectives {
 public:
  MemoryKind memory(const Asked&) const override { return MemoryKind::kHost; }

  void bcast(Context& c, Bytes data, int root) override {
    begin(c);
    bcast_by_mpi(c, data, root);
  }

  void reduce_to(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) override {
    begin(c);
    const bool has_result = receiver < 0 || receiver == c.topology().rank();
    for (std::size_t at = 0; at < in.size(); at += kMost) {
      const std::size_t n = std::min(kMost, in.size() - at);
      const Bytes part = has_result ? out.subspan(at, n) : Bytes();
      run(c, {.kind = receiver < 0 ? Call::kAllreduce : Call::kReduce,
              .in = in.subspan(at, n),
              .out = part,
              .root = receiver,
              .type = how.type,
              .op = how.op});
      divide(part, how);
    }
  }

  void allgather(Context& c, ConstBytes in, const std::vector<Bytes>& outs) override {
    begin(c);
    const int me = c.topology().rank();
    const Table table = table_of(c, outs, 1);
    if (table.bytes == 0) return;
    copy(outs[me], in);
    const std::optional<Bytes> all = joined(outs);
    const Bytes room = all ? *all : c.scratch(table.bytes);
    if (!all) copy(room.subspan(table.offsets[me], in.size()), in);
    run(c,
        {.kind = Call::kAllgather, .in = room, .out = room, .out_counts = table.counts, .out_offsets = table.offsets});
    if (!all) apart(room, outs);
  }

  void reduce_scatter(Context& c, const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how) override {
    begin(c);
    const Table table = table_of(c, ins, element_bytes(how.type));
    if (table.bytes == 0) return;
    run(c, {.kind = Call::kReduceScatter,
            .in = together(c, ins, table.bytes, out),
            .out = out,
            .type = how.type,
            .op = how.op,
            .in_counts = table.counts});
    divide(out, how);
  }

  void alltoall(Context& c, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs) override {
    note(c);
    compare_sizes(c, ins, outs);
    const Table sent = table_of(c, ins, 1), received = table_of(c, outs, 1);
    const std::optional<Bytes> all = joined(outs);
    const Bytes room = all ? *all : c.scratch(received.bytes);
    run(c, {.kind = Call::kAlltoall,
            .in = together(c, ins, sent.bytes, room),
            .out = room,
            .in_counts = sent.counts,
            .in_offsets = sent.offsets,
            .out_counts = received.counts,
            .out_offsets = received.offsets});
    if (!all) apart(room, outs);
  }

  void gather(Context& c, ConstBytes in, const std::vector<Bytes>& outs, int root) override {
    accdp::gather(c, in, outs, root);
  }
  void scatter(Context& c, const std::vector<ConstBytes>& ins, Bytes out, int root) override {
    accdp::scatter(c, ins, out, root);
  }
  Collectives& in_rank_order() override { return ordered_collectives(); }  // the library promises no order
};

}  // namespace

Collectives& mpi_collectives() {
  static MpiCollectives it;
  return it;
}

void bcast_by_mpi(Context& c, Bytes data, int root) {
  for (std::size_t at = 0; at < data.size(); at += kMost)
    run(c, {.kind = Call::kBcast, .out = data.subspan(at, std::min(kMost, data.size() - at)), .root = root});
}

}  // namespace accdp
