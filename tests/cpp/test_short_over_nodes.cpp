// Short operations over nodes, whose data go along with the signatures: results, messages, and ranks that disagree.
#include <array>
#include <atomic>
#include <chrono>
#include <numeric>

#include "coll/meeting.hpp"
#include "coll/schedule.hpp"
#include "group_checks.hpp"

namespace {

constexpr std::size_t kMost = kMostCarriedBytes / sizeof(std::int32_t);

void results(Group& group) {
  for (std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{700}, kMost / 2, kMost / 2 + 1, kMost, kMost + 1}) {
    one_block(group, count);
    many_blocks(group, count);
  }
}

/// To how many nodes a leader sends a broadcast.
std::size_t children_of(const Topology& t, int root, bool by_tree) {
  if (!by_tree) return t.is_near(root) ? t.nodes() - 1 : 0;
  const int place = (t.node() - t.node_of(root) + t.nodes()) % t.nodes();
  return bcast_schedule(BcastAlgorithm::kBinomial, t.nodes(), place, 1).front().to.size();
}

/// Whom a leader sends what. A signature goes to every other leader, or along with data that go one way. At the hub its
/// leader sends what all get.
void messages_sent(Group& group) {
  constexpr std::size_t kCount = 100, kBytes = kCount * sizeof(std::int32_t);
  const Topology& t = group.topology();
  const std::size_t others = t.nodes() - 1, leads = t.is_leader();
  const auto sent = [&] { return group.last_run().wire_bytes; };
  for (int root = 0; root < group.size(); ++root) {
    Ints data = input(root, kCount), sum(kCount);
    group.bcast(bytes(data), kType, root);
    CHECK(sent() == leads * children_of(t, root, group.shape().meets_at_hub) * (kSignatureBytes + kBytes));
    group.reduce(bytes(data), bytes(sum), kType, ReduceOp::kSum, root);
    CHECK(sent() == (leads && !t.is_near(root) ? kSignatureBytes + kBytes : 0));
    group.barrier();
  }
  Ints data = input(group.rank(), kCount);
  group.allreduce(bytes(data), bytes(data), kType, ReduceOp::kSum);
  const bool at_hub = group.shape().meets_at_hub, is_hub = at_hub && t.node() == 0;
  const std::size_t told = at_hub && !is_hub ? 1 : others;
  CHECK(sent() == leads * told * (kSignatureBytes + kBytes) && group.last_run().way.algorithm == std::string("direct"));
  CHECK(group.last_run().steps == (t.local_size() > 1 ? 2 : 1));
  std::vector<Ints> blocks(group.size(), Ints(kCount));
  std::vector<Bytes> outs;
  for (Ints& block : blocks) outs.push_back(bytes(block));
  group.allgather(bytes(data), outs, kType);
  CHECK(sent() == leads * told * (kSignatureBytes + kBytes * (is_hub ? t.size() : t.local_size())));
  for (int root = 0; root < group.size(); ++root) {
    group.gather(bytes(data), group.rank() == root ? outs : std::vector<Bytes>{}, kType, root);
    CHECK(sent() == (leads && !t.is_near(root) ? kSignatureBytes + kBytes * t.local_size() : 0));
  }
  // To each node its part.
  Ints mine(kCount);
  const std::size_t far_blocks = t.size() - t.local_size();
  const std::vector<ConstBytes> ins(outs.begin(), outs.end());
  for (int root = 0; root < group.size(); ++root) {
    group.scatter(group.rank() == root ? ins : std::vector<ConstBytes>{}, bytes(mine), kType, root);
    CHECK(sent() == (leads && t.is_near(root) ? others * kSignatureBytes + far_blocks * kBytes : 0));
    group.barrier();
  }
  group.reduce_scatter(ins, bytes(mine), kType, ReduceOp::kSum);
  CHECK(sent() == leads * (others * kSignatureBytes + far_blocks * kBytes));
  CHECK(group.last_run().steps == (t.local_size() > 1 ? 2 : 1));
  std::vector<Ints> got(group.size(), Ints(kCount));
  std::vector<Bytes> places;
  for (Ints& block : got) places.push_back(bytes(block));
  group.alltoall(ins, places, kType);
  CHECK(sent() == leads * (others * kSignatureBytes + far_blocks * t.local_size() * (kBytes + sizeof(std::uint64_t))));
  CHECK(group.last_run().steps == (t.local_size() > 1 ? 2 : 1));
}

/// Short and long blocks of one alltoall, which go different ways.
void mixed_blocks(Group& group) {
  const AlltoallCut cut(group.shape());
  const std::size_t limit = cut.limit / sizeof(std::int32_t);
  const auto count = [&](int from, int to) {
    return std::array{std::size_t{0}, std::size_t{1}, limit, limit + 1, 3 * limit + 5}[(from * 7 + to * 3) % 5];
  };
  std::vector<Ints> sent, got;
  std::vector<ConstBytes> ins;
  std::vector<Bytes> outs;
  for (int rank = 0; rank < group.size(); ++rank) {
    sent.push_back(input(10 * group.rank() + rank, count(group.rank(), rank)));
    got.push_back(Ints(count(rank, group.rank())));
  }
  for (Ints& block : sent) ins.push_back(bytes(block));
  for (Ints& block : got) outs.push_back(bytes(block));
  group.alltoall(ins, outs, kType);
  for (int rank = 0; rank < group.size(); ++rank)
    CHECK(got[rank] == input(10 * rank + group.rank(), count(rank, group.rank())));
}

/// Rank 0 expects something else of the last rank, which is on another node, than is sent: nothing of that is written.
void unexpected_sizes(const std::vector<int>& nodes, std::size_t sends, std::size_t expects) {
  run_nodes(nodes, [&](Group& group) {
    const int size = group.size();
    Ints data(std::max(sends, expects), group.rank()), place(data.size(), 77);
    std::vector<ConstBytes> ins(size, bytes(data).first(4));
    Ints ones(size);
    std::vector<Bytes> outs;
    for (int& one : ones) outs.push_back(std::as_writable_bytes(std::span(&one, 1)));
    if (group.rank() == size - 1) ins[0] = bytes(data).first(4 * sends);
    if (group.rank() == 0) outs[size - 1] = bytes(place).first(4 * expects);
    CHECK_THROWS((group.alltoall(ins, outs, kType), group.barrier()), MismatchError, "bytes to rank 0 (pid");
    CHECK(place == Ints(place.size(), 77));
  });
}

/// Above what root's node may send to all others by itself each node passes on what it got.
void bcast_by_tree(Group& group) {
  const Topology& t = group.topology();
  const std::size_t count = kMost / (t.nodes() - 1) + 1, letter = kSignatureBytes + count * sizeof(std::int32_t);
  for (int root = 0; root < group.size(); ++root) {
    Ints data = input(group.rank() == root ? root : 99, count);
    group.bcast(bytes(data), kType, root);
    CHECK(data == input(root, count));
    CHECK(group.last_run().wire_bytes == (t.is_leader() ? children_of(t, root, true) * letter : 0));
    group.barrier();
  }
}

/// The sum over nodes is divided once, in float32.
void average_of_halves(Group& group) {
  constexpr std::uint16_t kOne = 0x3c00, kTwo = 0x4000, kThree = 0x4200;
  std::vector<std::uint16_t> data(1000, group.rank() % 2 ? kThree : kOne);
  const Bytes memory = std::as_writable_bytes(std::span(data));
  std::vector<std::uint16_t> part(100), all(1000);
  group.reduce_scatter(std::vector<ConstBytes>(group.size(), memory.first(200)),
                       std::as_writable_bytes(std::span(part)), Datatype::kF16, ReduceOp::kAvg);
  CHECK(part == std::vector<std::uint16_t>(100, kTwo));
  group.reduce(memory, std::as_writable_bytes(std::span(all)), Datatype::kF16, ReduceOp::kAvg, 1);
  CHECK(all == std::vector<std::uint16_t>(1000, group.rank() == 1 ? kTwo : 0));  // of others: as it was
  group.allreduce(memory, memory, Datatype::kF16, ReduceOp::kAvg);
  CHECK(data == std::vector<std::uint16_t>(1000, kTwo));
}

/// What others sent along has not reached anybody's buffer, but for what a root sends one way: who agrees with root
/// takes it, as the first of its data.
void untouched(Group& group, const std::function<void(Ints& data)>& call, int root = -1) {
  group.barrier();
  const Ints before(2 * kMost, 7 + group.rank());
  Ints data = before, from_root = before;
  if (root >= 0) std::fill_n(from_root.begin(), 8, 7 + root);
  CHECK_THROWS((call(data), group.barrier()), MismatchError, "disagree: rank 1 (pid");
  CHECK(data == before || data == from_root);
  CHECK_THROWS(group.barrier(), MismatchError, "disagree: rank 1 (pid");
}

void disagreements(const std::vector<int>& nodes, double cores) {
  const auto part = [](Ints& data, std::size_t count) { return bytes(data).first(count * sizeof(std::int32_t)); };
  const auto sum = [](Group& group, Bytes data) { group.allreduce(data, data, kType, ReduceOp::kSum); };
  const auto run = [&](const Body& body) { run_nodes(nodes, body, cores); };
  for (std::size_t odd : {std::size_t{9}, kMost, kMost + 1})  // the last one is too long to go along
    run([&](Group& group) {
      untouched(group, [&](Ints& data) { sum(group, part(data, group.rank() == 1 ? odd : 8)); });
    });
  run([&](Group& group) {
    untouched(
        group,
        [&](Ints& data) { group.rank() == 1 ? sum(group, part(data, 8)) : group.bcast(part(data, 8), kType, 0); }, 0);
  });
  run([&](Group& group) {
    untouched(group, [&](Ints& data) { group.rank() == 1 ? sum(group, part(data, 8)) : group.barrier(); });
  });
  run([&](Group& group) {
    untouched(group, [&](Ints& data) { group.bcast(part(data, 8), kType, group.rank() == 1 ? 1 : 0); }, 0);
  });
  // Of those in which each node gets its part.
  const auto blocks = [](Group& group, Ints& data, std::size_t count) {
    std::vector<Bytes> outs(group.size(), bytes(data).first(count * sizeof(std::int32_t)));
    outs[group.rank()] = bytes(data).last(count * sizeof(std::int32_t));
    return outs;
  };
  const auto scatter_sums = [&](Group& group, Ints& data, std::size_t count) {
    const std::vector<Bytes> outs = blocks(group, data, count);
    group.reduce_scatter({outs.begin(), outs.end()}, outs[group.rank()], kType, ReduceOp::kSum);
  };
  for (std::size_t odd : {std::size_t{9}, kMost})
    run([&](Group& group) {
      untouched(group, [&](Ints& data) { scatter_sums(group, data, group.rank() == 1 ? odd : 8); });
    });
  run([&](Group& group) {
    untouched(group, [&](Ints& data) { group.rank() == 1 ? scatter_sums(group, data, 8) : sum(group, part(data, 8)); });
  });
  run([&](Group& group) {
    untouched(group, [&](Ints& data) {
      const std::vector<Bytes> outs = blocks(group, data, 8);
      const std::vector<ConstBytes> ins(outs.begin(), outs.end());
      group.rank() == 1 ? group.scatter({}, part(data, 8), kType, 0) : group.alltoall(ins, outs, kType);
    });
  });
  run([&](Group& group) {
    untouched(
        group,
        [&](Ints& data) {
          const std::vector<Bytes> outs = blocks(group, data, 8);
          const int root = group.rank() == 1 ? 1 : 0;
          group.scatter(
              group.rank() == root ? std::vector<ConstBytes>(outs.begin(), outs.end()) : std::vector<ConstBytes>{},
              part(data, 8), kType, root);
        },
        0);
  });
}

/// Longer ones: a root that does not lead its node sends nothing to others before its leader has compared.
void disagreement_of_nodes() {
  constexpr std::size_t kBytes = 32 << 10;  // long enough to go by itself, short enough for one step on root's node
  run_nodes({0, 0, 1, 1}, [](Group& group) {
    group.barrier();
    const std::vector<std::byte> mine(kBytes, std::byte(group.rank())), before(kBytes, std::byte{99});
    std::vector<std::byte> got = before;
    const std::vector<ConstBytes> ins(group.rank() == 1 ? group.size() : 0, ConstBytes(mine));
    const Datatype type = group.topology().node() == 0 ? kType : Datatype::kF32;
    CHECK_THROWS(group.scatter(ins, std::span(got), type, 1), MismatchError, "disagree: rank ");
    CHECK(group.topology().node() == 0 || got == before);
  });
}

/// By lanes all ranks send: none that does not lead does before its leader has compared, however late that is. All say
/// on what they disagree, and nobody's memory is touched, but for the place of the own block.
void disagreement_of_lanes(const std::string& operation, bool by_type) {
  constexpr std::size_t kCount = 100'000;
  const auto mail = std::make_shared<Mail>();
  std::atomic<Clock::rep> until{0};
  mail->has_come = [&](int from, int, ConstBytes) {
    return from % 2 == 1 || Clock::now().time_since_epoch().count() >= until;
  };
  std::atomic<bool> others_sent{false};
  mail->leaves = [&](int from, int, ConstBytes) { others_sent = others_sent || from % 2 == 1; };
  run_nodes(
      {0, 0, 1, 1},
      [&](Group& group) {
        group.barrier();
        until = (Clock::now() + std::chrono::milliseconds(100)).time_since_epoch().count();
        const bool is_odd = group.topology().node() == 1;
        const Datatype type = is_odd && by_type ? Datatype::kU32 : kType;
        const std::size_t count = is_odd && !by_type ? kCount - 64 : kCount;
        Ints all = input(group.rank(), 4 * count);
        const Ints before = all;
        std::vector<Bytes> blocks;
        for (int rank = 0; rank < group.size(); ++rank)
          blocks.push_back(bytes(all).subspan(rank * count * sizeof(std::int32_t), count * sizeof(std::int32_t)));
        const Bytes mine = blocks[group.rank()];
        const auto call = [&] {
          if (operation == "allgather")
            group.allgather(mine, blocks, type);
          else if (operation == "allreduce")
            group.allreduce(bytes(all), bytes(all), type, ReduceOp::kSum);
          else
            group.reduce_scatter({blocks.begin(), blocks.end()}, mine, type, ReduceOp::kSum);
        };
        CHECK_THROWS(call(), MismatchError, "disagree");
        CHECK(all == before);
      },
      kOwnCores, mail);
  CHECK(!others_sent);
}

}  // namespace

int main() {
  for (const char* operation : {"allgather", "allreduce", "reduce_scatter"})
    for (bool by_type : {false, true}) disagreement_of_lanes(operation, by_type);

  for (const std::vector<int>& nodes :
       {std::vector{0, 1}, {0, 1, 2}, {0, 0, 1, 1}, {0, 1, 0}, {0, 1, 0, 1, 0, 2}, {0, 1, 2, 3, 4, 5, 6, 7}}) {
    for (double cores : {kOwnCores, kSharedCores}) {
      run_nodes(nodes, results, cores);
      run_nodes(nodes, messages_sent, cores);
      run_nodes(nodes, mixed_blocks, cores);
    }
  }
  for (int nodes : {3, 4, 8}) {
    std::vector<int> apart(nodes);
    std::iota(apart.begin(), apart.end(), 0);
    run_nodes(apart, bcast_by_tree);
  }
  run_nodes({0, 1, 0, 2, 2, 1}, bcast_by_tree);
  run_nodes({0, 1, 2, 3, 4, 5, 6, 7, 8}, results);  // too many nodes for one round
  run_nodes({0, 1, 2, 3, 4, 5, 6, 7, 8}, mixed_blocks);
  run_nodes({0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9, 9}, mixed_blocks);
  for (const std::vector<int>& nodes : {std::vector{0, 1}, {0, 0, 1, 1}, {0, 1, 2}, {0, 0, 1, 2, 3, 4, 5, 6, 7, 8}})
    for (const auto& [sends, expects] : {std::pair<std::size_t, std::size_t>{8, 9},
                                         {9, 8},
                                         {kMost, 9},
                                         {9, kMost},
                                         {2 * kMost, kMost},
                                         {0, 1},
                                         {1, 0}})
      unexpected_sizes(nodes, sends, expects);
  run_nodes({0, 1}, average_of_halves);
  run_nodes({0, 0, 1, 1}, average_of_halves);
  run_nodes({0, 0, 0, 1}, average_of_halves);
  run_nodes({0, 0, 1, 1, 2, 2}, average_of_halves, kSharedCores);
  for (double cores : {kOwnCores, kSharedCores}) {
    disagreements({0, 1, 2}, cores);
    disagreements({0, 1, 0, 2, 2}, cores);
  }
  for (int turn = 0; turn < 20; ++turn) disagreement_of_nodes();
}
