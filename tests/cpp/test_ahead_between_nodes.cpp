// Short calls between nodes, in which who tells something goes ahead of those who get it: how far, that data and calls
// stay together, and that ranks that disagree are noticed by all, whoever waits for whom.
#include <numeric>
#include <random>

#include "group_checks.hpp"

namespace {

constexpr std::size_t kShort = 40, kByTree = 20000;

/// While the others stay away root goes exactly so many broadcasts ahead.
void how_far(int nodes) {
  std::atomic<int> done{0}, ended{0};
  std::vector<int> places(nodes);
  std::iota(places.begin(), places.end(), 0);
  run_nodes(places, [&](Group& group) {
    Ints data(kShort);
    group.barrier();
    const int calls = 3 * RollCall::kMostCallsAhead;
    if (group.rank() != 0) {
      while (done < RollCall::kMostCallsAhead) usleep(1000);
      usleep(50 * 1000);  // time enough for more, which there must not be
      if (ended == 0) CHECK(done == RollCall::kMostCallsAhead);
      ++ended;
    }
    for (int call = 0; call < calls; ++call) {
      if (group.rank() == 0) data = input(call, kShort);
      group.bcast(bytes(data), kType, 0);
      CHECK(data == input(call, kShort));
      if (group.rank() == 0) ++done;
    }
  });
}

/// Calls of all kinds, roots in turn, every rank at its own pace.
void calls_stay_apart(const std::vector<int>& nodes, int calls, double cores = kOwnCores) {
  const int size = static_cast<int>(nodes.size());
  const auto body = [&](Group& group) {
    std::mt19937 same(1), pace(group.rank());
    for (int call = 0; call < calls; ++call) {
      const int root = static_cast<int>(same() % size), kind = static_cast<int>(same() % 8);
      const std::size_t count = same() % 16 == 0 ? 3 * kChunk : same() % 16 == 1 ? kByTree : same() % kShort;
      if (pace() % 16 == 0) usleep(pace() % 300);
      Ints give = input(call + group.rank(), count), take(count);
      const bool is_root = group.rank() == root;
      if (kind == 0) {
        group.allreduce(bytes(give), bytes(take), kType, ReduceOp::kMax);
        CHECK(take == input(call + size - 1, count));
      } else if (kind <= 2) {
        group.reduce(bytes(give), bytes(take), kType, ReduceOp::kMax, root);
        CHECK(!is_root || take == input(call + size - 1, count));
      } else if (kind <= 4) {
        std::vector<Ints> all(size, Ints(count));
        std::vector<Bytes> outs;
        for (Ints& block : all) outs.push_back(bytes(block));
        group.gather(bytes(give), is_root ? outs : std::vector<Bytes>{}, kType, root);
        for (int rank = 0; rank < size; ++rank) CHECK(!is_root || all[rank] == input(call + rank, count));
      } else {
        group.bcast(bytes(give), kType, root);
        CHECK(give == input(call + root, count));
      }
    }
    group.barrier();
  };
  run_nodes(nodes, body, cores);
}

using Call = std::function<void(Group&, Ints& data)>;
struct Place {
  std::vector<int> nodes;
  double cores = kOwnCores;
};

/// The ranks of `nodes` call one thing, rank 2 another. All hear of it, by words that name it first and both calls.
void disagreement(const Place& place, const Call& usual, const std::string& usual_words, const Call& odd,
                  const std::string& odd_words) {
  const auto started = Clock::now();
  const auto body = [&](Group& group) {
    Ints data = input(group.rank(), kByTree);
    group.barrier();
    std::string said;
    try {
      group.rank() == 2 ? odd(group, data) : usual(group, data);
      group.barrier();
      group.barrier();  // one that neither sent to the odd rank nor should have heard of it may get so far
    } catch (const MismatchError& error) {
      said = error.what();
    }
    const std::size_t first = said.find("ranks disagree: rank 2 (pid"), its = said.find(odd_words);
    if (first == std::string::npos || its == std::string::npos || said.find(usual_words, its) == std::string::npos)
      throw Error("expected that rank 2 calls " + odd_words + ", but others " + usual_words + ", got " + said);
    CHECK_THROWS(group.barrier(), MismatchError, "#2 is an earlier call; this is #");
  };
  run_nodes(place.nodes, body, place.cores);
  CHECK(Clock::now() - started < std::chrono::seconds(10));  // not by the deadline
}

Call bcast_from(int root, std::size_t count = 4) {
  return [=](Group& group, Ints& data) { group.bcast(bytes(data).first(count * sizeof(data[0])), kType, root); };
}
Call reduce_to(int root) {
  return [=](Group& group, Ints& data) {
    Ints sum(4);
    group.reduce(bytes(data).first(16), bytes(sum), kType, ReduceOp::kSum, root);
  };
}
Call gather_to(int root) {
  return [=](Group& group, Ints& data) {
    std::vector<Ints> all(group.size(), Ints(4));
    std::vector<Bytes> outs;
    for (Ints& block : all) outs.push_back(bytes(block));
    group.gather(bytes(data).first(16), group.rank() == root ? outs : std::vector<Bytes>{}, kType, root);
  };
}

void disagreements(const Place& nodes) {
  const std::string from_0 = "calls bcast of 4 int32 with root 0 as #2";
  disagreement(nodes, bcast_from(0), from_0, bcast_from(0, 5), "calls bcast of 5 int32 with root 0 as #2");
  disagreement(nodes, bcast_from(2), "calls bcast of 4 int32 with root 2", bcast_from(2, 5), "calls bcast of 5 int32");
  disagreement(nodes, bcast_from(0), from_0, bcast_from(2), "calls bcast of 4 int32 with root 2 as #2");
  // By a tree, in which rank 2 passes on to others where there are enough.
  const std::string long_one = "calls bcast of 20000 int32 with root 0 as #2";
  disagreement(nodes, bcast_from(0, kByTree), long_one, bcast_from(0, 5), "calls bcast of 5 int32 with root 0 as #2");
  disagreement(nodes, bcast_from(0, kByTree), long_one, bcast_from(2, kByTree), "int32 with root 2 as #2");
  // Nobody sends: each waits for another.
  disagreement(nodes, bcast_from(2), "calls bcast of 4 int32 with root 2 as #2", bcast_from(0), from_0);
  disagreement(nodes, reduce_to(0), "calls reduce (sum) of 4 int32 with root 0 as #2", reduce_to(2), "with root 2");
  disagreement(nodes, gather_to(0), "calls gather of 4 int32 with root 0 as #2", reduce_to(1), "calls reduce");
  disagreement(nodes, bcast_from(1), "calls bcast of 4 int32 with root 1 as #2", gather_to(0), "calls gather");
  disagreement(nodes, reduce_to(2), "calls reduce (sum) of 4 int32 with root 2", bcast_from(0), from_0);
  const Call barrier = [](Group& group, Ints&) { group.barrier(); };
  disagreement(nodes, barrier, "calls barrier as #2", gather_to(0), "calls gather");
  disagreement(nodes, gather_to(0), "calls gather", barrier, "calls barrier as #2");
  disagreement(nodes, bcast_from(2), "calls bcast", barrier, "calls barrier as #2");
  const Call sum = [](Group& group, Ints& data) {
    const Bytes some = bytes(data).first(16);
    group.allreduce(some, some, kType, ReduceOp::kSum);
  };
  disagreement(nodes, sum, "calls allreduce (sum) of 4 int32 as #2", reduce_to(0), "calls reduce");
  disagreement(nodes, bcast_from(1), "calls bcast", sum, "calls allreduce (sum) of 4 int32 as #2");
}

/// One that comes late is asked what it calls, and answers when it comes.
void late_ranks() {
  for (int late : {0, 1, 2})
    run_nodes({0, 1, 2}, [&](Group& group) {
      Ints data = input(group.rank(), kShort);
      for (int call = 0; call < 3; ++call) {
        if (group.rank() == late) usleep(120 * 1000);
        bcast_from(late)(group, data);
        reduce_to(0)(group, data);
      }
      group.barrier();
    });
}

}  // namespace

int main() {
  change_sizes("4k", "1k", "4k", "1k");
  how_far(2);
  how_far(4);
  calls_stay_apart({0, 1}, 600);
  calls_stay_apart({0, 1, 2}, 400);
  calls_stay_apart({0, 0, 1, 1}, 300);
  calls_stay_apart({0, 1, 2, 3, 4, 5, 6, 7}, 200);
  calls_stay_apart({0, 1, 2, 3}, 400, kSharedCores);
  calls_stay_apart({0, 0, 1, 1, 2}, 300, kSharedCores);
  for (double cores : {kOwnCores, kSharedCores}) {
    disagreements({{0, 1, 2}, cores});
    disagreements({{0, 1, 2, 3}, cores});
    disagreements({{0, 0, 1, 2, 2}, cores});
  }
  late_ranks();
}
