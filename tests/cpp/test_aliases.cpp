// Results that lie where block 0, or another block of what is given, does: on every rank, whichever it is.
#include "group_checks.hpp"

void aliases(Group& group, std::size_t count) {
  const int size = group.size(), me = group.rank();
  const auto blocks_of = [&](Ints& all) {
    std::vector<Bytes> blocks;
    for (int rank = 0; rank < size; ++rank)
      blocks.push_back(bytes(all).subspan(rank * count * sizeof(std::int32_t), count * sizeof(std::int32_t)));
    return blocks;
  };
  const auto block = [&](const Ints& all, int rank) {
    return Ints(all.begin() + rank * count, all.begin() + (rank + 1) * count);
  };
  for (int place = 0; place < size; ++place) {
    Ints all = input(me, size * count);
    const auto fill = [&](const Ints& values) { std::copy(values.begin(), values.end(), all.begin()); };
    std::vector<Bytes> blocks = blocks_of(all);
    group.reduce_scatter({blocks.begin(), blocks.end()}, blocks[place], kType, ReduceOp::kSum);
    CHECK(block(all, place) == block(sum_of_inputs(size, size * count), me));
    for (int root = 0; root < size; ++root) {
      fill(input(root, size * count));
      Ints own(count);
      group.scatter(me == root ? std::vector<ConstBytes>(blocks.begin(), blocks.end()) : std::vector<ConstBytes>{},
                    me == root ? blocks[place] : bytes(own), kType, root);
      CHECK((me == root ? block(all, place) : own) == block(input(root, size * count), me));
      fill(input(me, size * count));
      group.gather(blocks[place], me == root ? blocks : std::vector<Bytes>{}, kType, root);
      for (int rank = 0; me == root && rank < size; ++rank)
        CHECK(block(all, rank) == block(input(rank, size * count), place));
    }
    fill(input(me, size * count));
    std::vector<Bytes> turned;
    for (int rank = 0; rank < size; ++rank) turned.push_back(blocks[(rank + place) % size]);
    group.alltoall({blocks.begin(), blocks.end()}, turned, kType);
    for (int rank = 0; rank < size; ++rank)
      CHECK(block(all, (rank + place) % size) == block(input(rank, size * count), me));
  }
}

int main() {
  for (std::size_t count : {std::size_t{8}, std::size_t{5000}, std::size_t{30'000}}) {
    const auto body = [&](Group& group) { aliases(group, count); };
    CHECK(run_ranks(3, body));
    for (const std::vector<int>& nodes : {std::vector{0, 1, 2}, {0, 0, 1, 1}}) run_nodes(nodes, body);
  }
}
