// Sizes and numbers of ranks at the edges of what the settings allow. Every case runs, also after one that failed.
#include <fcntl.h>
#include <sys/resource.h>

#include <numeric>

#include "group_checks.hpp"
#include "node/process.hpp"

/// One element more than a slot holds, where a slot holds no whole number of elements.
void odd_chunk(Group& group) {
  for (std::size_t count : {kChunk, 2 * kChunk, 5 * kChunk + 3}) {
    one_block(group, count);
    many_blocks(group, count);
  }
}

/// Sizes between what 130 leaders send whole and what they cut into parts that fill a cache line.
void many_nodes(Group& group) {
  for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1025}, std::size_t{1100}, std::size_t{3000}}) {
    Ints mine = input(group.rank(), count);
    group.allreduce(bytes(mine), bytes(mine), kType, ReduceOp::kSum);
    CHECK(mine == sum_of_inputs(group.size(), count));
  }
}

/// Where ranks outnumber cores a rank offers them its own, but not time that a quota has not: it sleeps instead.
void quotas() {
  const auto longest_offer = [](double cores, double paid) {
    const Segment segment(2);
    std::chrono::nanoseconds offer[2];
    std::vector<std::jthread> ranks;
    for (int rank : {0, 1})
      ranks.emplace_back([&, rank] {
        const Peer peer{.host = "host", .pid = getpid(), .start_time = 0, .node = 0, .cores = cores, .paid = paid};
        Fabric fabric("quotas", rank, {peer, peer}, segment.fd(), 30, nullptr);
        offer[rank] = fabric.patience(kCollective).yield.time();
      });
    ranks.clear();
    CHECK(offer[0] == offer[1]);
    return offer[0];
  };
  CHECK(longest_offer(1.5, kOwnCores).count() > 0 && longest_offer(1.5, 2).count() > 0);
  CHECK(longest_offer(1.5, 1.5).count() == 0);
}

/// Fewer bytes than each rank could have a cache line of, and some more.
void many_owners(Group& group) {
  group.set_deterministic(true);
  for (std::size_t count : {std::size_t{1}, std::size_t{23}, std::size_t{1559}, std::size_t{1600}}) {
    Ints mine = input(group.rank(), count), result(count);
    group.allreduce(bytes(mine), bytes(result), kType, ReduceOp::kSum);
    CHECK(result == sum_of_inputs(group.size(), count));
    group.reduce(bytes(mine), bytes(mine), kType, ReduceOp::kSum, 3);
    if (group.rank() == 3) CHECK(mine == result);
  }
}

/// A group keeps the sizes that it was formed with; changed settings are for groups formed later.
void settings_change(Group& group) {
  group.set_timeout_s(10);
  group.barrier();
  change_sizes("1M", "64k", "256k", "64k");
  everything(group);
}

/// Blocks that are smaller than what a slot has left for each of many ranks.
void many_ranks(Group& group) {
  const int size = group.size(), rank = group.rank();
  Ints out(size), in(size), sums(3 * size, 1), sum(3);
  std::iota(out.begin(), out.end(), 1000 * rank);
  std::vector<ConstBytes> outgoing, parts;
  std::vector<Bytes> incoming;
  for (int r = 0; r < size; ++r) {
    outgoing.push_back(bytes(out).subspan(r * sizeof(std::int32_t), sizeof(std::int32_t)));
    incoming.push_back(bytes(in).subspan(r * sizeof(std::int32_t), sizeof(std::int32_t)));
    parts.push_back(bytes(sums).subspan(r * 3 * sizeof(std::int32_t), 3 * sizeof(std::int32_t)));
  }
  group.alltoall(outgoing, incoming, kType, 15);
  for (int r = 0; r < size; ++r) CHECK(in[r] == 1000 * r + rank);
  group.reduce_scatter(parts, bytes(sum), kType, ReduceOp::kSum, 15);
  CHECK(sum == Ints(3, size));
  group.scatter(rank == 0 ? parts : std::vector<ConstBytes>{}, bytes(sum), kType, 0, 15);
  CHECK(sum == Ints(3, 1));
}

/// The last rank sends rank 0 one element, but rank 0 expects `expected`.
void uneven_alltoall(Group& group, std::size_t expected) {
  const int size = group.size(), last = size - 1;
  Ints data(4);
  std::vector<ConstBytes> ins(size);
  std::vector<Bytes> outs(size);
  if (group.rank() == last) ins[0] = bytes(data).first(sizeof(std::int32_t));
  if (group.rank() == 0) outs[last] = bytes(data).first(expected * sizeof(std::int32_t));
  if (group.rank() == 0) {
    CHECK_THROWS(group.alltoall(ins, outs, kType, 5), MismatchError, "");
    return;
  }
  try {  // another rank may be through before rank 0 sees it, but not through the next call
    group.alltoall(ins, outs, kType, 5);
    group.barrier(5);
    CHECK(!"the barrier should have failed");
  } catch (const MismatchError&) {
  }
}

void encoded(Group& group, std::size_t count) {
  for (int root : {0, group.size() - 1}) {
    std::vector<float> data(count, group.rank() == root ? 1.5f : 0);
    const Bytes memory = std::as_writable_bytes(std::span(data));
    const StreamReport report = group.bcast_stream({{memory, Datatype::kF32}}, root, stream_options("fpk", 0, ""));
    CHECK(data == std::vector<float>(count, 1.5f) && report.logical_bytes == memory.size());
  }
}

struct Case {
  const char* name;
  std::function<void()> run;
};

int main() {
  const auto small = [] { change_sizes("4k", "1k", "8k", "1k"); };
  const std::vector<Case> cases{
      {"a chunk of 5001 bytes",
       [] {
         try {
           change_sizes("5001", "1001", "8k", "1k");
         } catch (const UsageError&) {
           return;  // to refuse such a size is as good as to cope with it
         }
         CHECK(run_ranks(3, odd_chunk));
       }},
      {"settings that change after the group was formed", [] { CHECK(run_ranks(2, settings_change)); }},
      {"alltoall: one element sent, two expected, one node",
       [] { CHECK(run_ranks(2, [](Group& group) { uneven_alltoall(group, 2); })); }},
      {"alltoall: one element sent, two expected, two nodes",
       [] { run_nodes({0, 1}, [](Group& group) { uneven_alltoall(group, 2); }); }},
      {"alltoall: one element sent, none expected, one node",
       [] { CHECK(run_ranks(2, [](Group& group) { uneven_alltoall(group, 0); })); }},
      {"alltoall: one element sent, none expected, two nodes",
       [] { run_nodes({0, 1}, [](Group& group) { uneven_alltoall(group, 0); }); }},
      {"70 ranks on one node", [] { run_nodes(std::vector<int>(70, 0), many_ranks); }},
      {"64 ranks on four nodes",  // the sizes of an alltoall have no room in a slot
       [] {
         std::vector<int> nodes(64);
         for (std::size_t rank = 0; rank < nodes.size(); ++rank) nodes[rank] = static_cast<int>(rank / 16);
         run_nodes(nodes, [](Group& group) {
           CHECK(!AlltoallCut(group.shape()).by_leaders);
           many_ranks(group);
           many_blocks(group, 1500);
         });
         for (std::size_t expected : {0, 2}) run_nodes(nodes, [&](Group& group) { uneven_alltoall(group, expected); });
       }},
      {"17 ranks on one node, one on another",  // whose slots are not equally long
       [] {
         std::vector<int> nodes(18, 0);
         nodes.back() = 1;
         run_nodes(nodes, [](Group& group) {
           for (std::size_t count : {std::size_t{1}, std::size_t{40}, std::size_t{75}, std::size_t{5000}}) {
             many_blocks(group, count);
             one_block(group, count);
           }
           encoded(group, 5000);
         });
       }},
      {"a process that can open no file",
       [] {
         rlimit usual;
         CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
         const rlimit none{0, usual.rlim_max};
         CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0 && open("/proc/self/stat", O_RDONLY) < 0);
         CHECK(process_lives(getpid(), 0));  // nobody knows, so nobody is taken for dead
         CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0 && process_lives(getpid(), 0) && !process_lives(getpid(), 1));
       }},
      {"a quota below the ranks", quotas},
      {"130 nodes",
       [] {
         std::vector<int> nodes(130);
         std::iota(nodes.begin(), nodes.end(), 0);
         run_nodes(nodes, many_nodes);
       }},
      {"96 nodes, in the order of ranks",
       [] {
         std::vector<int> nodes(96);
         std::iota(nodes.begin(), nodes.end(), 0);
         run_nodes(nodes, many_owners);
       }},
  };
  bool good = true;
  for (const Case& one : cases) {
    const bool passed = fork_ranks(1, [&](int) {
      alarm(60);
      small();
      one.run();
    });
    std::fprintf(stderr, "%s: %s\n", passed ? "passed" : "FAILED", one.name);
    good = good && passed;
  }
  return good ? 0 : 1;
}
