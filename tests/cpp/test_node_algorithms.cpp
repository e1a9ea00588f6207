// Every way of an allreduce between nodes, and the pipelines of blocks, on 2 to 8 ranks that are threads: sums, one
// rounding over the nodes, the same bits on all ranks. How blocks are cut.
#include <cmath>
#include <cstring>
#include <random>

#include "coll/block_frames.hpp"
#include "group_checks.hpp"

const std::vector<std::vector<int>> kShapes{
    {0, 1},
    {0, 1, 2},
    {0, 1, 0, 2},
    {0, 1, 2, 3, 4},
    {0, 0, 1, 1, 2, 2},
    {0, 1, 2, 3, 4, 5, 6},
    {0, 0, 0, 0, 1, 1, 1, 1},
    {0, 1, 1, 2, 2, 2, 0, 3},
    {0, 1, 2, 3, 4, 5, 6, 7},
};

/// Every byte of every block is in one part, in its node's frames, in the order of the stream; no segment is longer
/// than it should be by more than a line per frame.
void cut_blocks() {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<int>& nodes = kShapes[round % kShapes.size()];
    const Topology t(0, nodes);
    std::vector<std::size_t> bytes;
    std::size_t total = 0;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      total += bytes.emplace_back(random() % 3 ? random() % (round % 5 ? 9'000 : 90) / 4 * 4 : 0);
    const int lanes = 1 + static_cast<int>(random() % 3);
    const BlockFrames frames(t, bytes, 4096, lanes);
    const FrameGrid& grid = frames.grid();
    std::vector<std::size_t> seen(nodes.size()), shown(nodes.size());
    std::size_t end = 0;
    for (std::size_t segment = 0; segment < grid.segments(); ++segment) {
      const FrameGrid::Cut all = grid.segment(segment);
      CHECK(all.begin == end && all.bytes <= 4096 + 64 * std::size_t(t.nodes()) * lanes);
      for (std::size_t at = 0; at < all.bytes; at += 1024) {
        std::size_t next = 0;
        frames.visit(segment, {all.begin + at, std::min<std::size_t>(1024, all.bytes - at)},
                     [&](const BlockFrames::Part& part) {
                       CHECK(part.at == next && part.bytes > 0 && part.lane < lanes);
                       CHECK(part.offset == seen[part.rank]);
                       seen[part.rank] += part.bytes;
                       next += part.bytes;
                       end += part.bytes;
                     });
      }
      for (int node = 0; node < t.nodes(); ++node)
        frames.visit_stream(node, frames.stream(segment, node), [&](const BlockFrames::Part& part) {
          CHECK(t.node_of(part.rank) == node && part.offset == shown[part.rank]);
          shown[part.rank] += part.bytes;
        });
      for (std::size_t rank = 0; rank < nodes.size(); ++rank) CHECK(shown[rank] == seen[rank]);
    }
    CHECK(end == total && seen == bytes);
  }
}

void same_on_all(Group& group, const std::vector<float>& values) {
  Ints most(values.size());
  if (!values.empty()) std::memcpy(most.data(), values.data(), values.size() * sizeof(float));
  const Ints bits = most;
  Ints least = most;
  group.allreduce(bytes(most), bytes(most), kType, ReduceOp::kMax);
  group.allreduce(bytes(least), bytes(least), kType, ReduceOp::kMin);
  CHECK(most == bits && least == bits);
}

void sums(Group& group) {
  const int size = group.size();
  for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{5}, kChunk + 1, 7 * kChunk + 3}) {
    Ints mine = input(group.rank(), count), result(count);
    group.allreduce(bytes(mine), bytes(result), kType, ReduceOp::kSum);
    CHECK(result == sum_of_inputs(size, count));
    group.allreduce(bytes(mine), bytes(mine), kType, ReduceOp::kSum);
    CHECK(mine == result);
    std::mt19937 random(group.rank() + 1);
    std::vector<float> values(count);
    for (float& value : values) value = std::normal_distribution<float>()(random);
    const Bytes memory = std::as_writable_bytes(std::span(values));
    group.allreduce(memory, memory, Datatype::kF32, ReduceOp::kAvg);
    same_on_all(group, values);
    // Doubles and halves, whose elements are not as long as what the ways cut.
    std::vector<double> doubles(count, group.rank() + 1.0);
    const Bytes wide = std::as_writable_bytes(std::span(doubles));
    group.allreduce(wide, wide, Datatype::kF64, ReduceOp::kAvg);
    for (double value : doubles) CHECK(value == (size + 1) / 2.0);
  }
}

/// 2048 + 1 is no float16 and no bfloat16, 2048 + 16 is both: who rounds after each node loses the ones.
void one_rounding(Group& group) {
  const int size = group.size();
  for (Datatype type : {Datatype::kF16, Datatype::kBF16}) {
    auto half = [&](float value) {
      std::uint16_t bits;
      narrow(&bits, &value, 1, type);
      return bits;
    };
    std::vector<std::uint16_t> data(100, half(group.rank() == 0 ? 2048.0F : 16.0F / static_cast<float>(size - 1)));
    const Bytes memory = std::as_writable_bytes(std::span(data));
    group.allreduce(memory, memory, type, ReduceOp::kSum);
    // A share of 16 is rounded when it is made, so the sum may be off by what that took away.
    for (std::uint16_t bits : data) {
      float value;
      widen(&value, &bits, 1, type);
      CHECK(std::abs(value - 2064.0F) <= (type == Datatype::kF16 ? 0.0F : 16.0F));
      CHECK(value > 2048.0F);
    }
    CHECK(std::equal(data.begin() + 1, data.end(), data.begin()));
  }
}

void blocks(Group& group) {
  for (std::size_t count : kCounts) many_blocks(group, count);
}

/// All bytes on one rank, or on none.
void lopsided_blocks(Group& group) {
  const int size = group.size();
  for (int holder = -1; holder < size; ++holder) {
    const std::size_t count = 5 * kChunk + 1;
    std::vector<Ints> all;
    for (int rank = 0; rank < size; ++rank) all.push_back(rank == holder ? Ints(count) : Ints());
    std::vector<Bytes> outs;
    for (Ints& block : all) outs.push_back(bytes(block));
    Ints mine = group.rank() == holder ? input(holder, count) : Ints();
    group.allgather(bytes(mine), outs, kType);
    if (holder >= 0) CHECK(all[holder] == input(holder, count));
    Ints sum(mine.size());
    const std::vector<ConstBytes> ins(outs.begin(), outs.end());
    group.reduce_scatter(ins, bytes(sum), kType, ReduceOp::kMax);
    CHECK(sum == mine);
  }
}

/// The result where a rank's own block was.
void blocks_in_place(Group& group) {
  const std::size_t count = 3 * kChunk + 7;
  std::vector<Ints> parts;
  for (int rank = 0; rank < group.size(); ++rank) parts.push_back(input(rank, count + rank));
  const std::vector<Ints> given = parts;
  std::vector<Bytes> outs;
  for (Ints& part : parts) outs.push_back(bytes(part));
  const std::vector<ConstBytes> ins(outs.begin(), outs.end());
  group.reduce_scatter(ins, outs[group.rank()], kType, ReduceOp::kSum);
  for (int rank = 0; rank < group.size(); ++rank)
    for (std::size_t i = 0; i < parts[rank].size(); ++i)
      CHECK(parts[rank][i] == given[rank][i] * (rank == group.rank() ? group.size() : 1));
  group.allgather(ins[group.rank()], outs, kType);
  for (int rank = 0; rank < group.size(); ++rank)
    for (std::size_t i = 0; i < parts[rank].size(); ++i) CHECK(parts[rank][i] == given[rank][i] * group.size());
}

void without_mpi(Group& group) {
  Ints data(4);
  CHECK_THROWS(group.allreduce(bytes(data), bytes(data), kType, ReduceOp::kSum), UsageError,
               "expected a group that has");
  group.barrier();  // nothing was sent, so all is well
}

int main() {
  cut_blocks();
  change_sizes("4k", "1k", "8k", "1k");
  for (const ReduceAlgorithmRow& row : reduce_algorithm_rows()) {
    if (row.id == ReduceAlgorithm::kMpi) continue;  // tests/mpi has it
    set_setting("ACCDP_ALLREDUCE", row.name);
    CHECK(run_ranks(2, sums));
    for (const std::vector<int>& nodes : kShapes) {
      run_nodes(nodes, sums);
      const bool rank_each = nodes.back() + 1 == static_cast<int>(nodes.size());
      if (rank_each) run_nodes(nodes, one_rounding);
    }
  }
  set_setting("ACCDP_ALLREDUCE", "mpi");
  CHECK(run_ranks(2, without_mpi));
  set_setting("ACCDP_ALLREDUCE", "auto");
  for (const std::vector<int>& nodes : kShapes) {
    run_nodes(nodes, blocks);
    run_nodes(nodes, lopsided_blocks);
    run_nodes(nodes, blocks_in_place);
  }
}
