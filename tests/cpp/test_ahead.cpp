// Short calls on one node, in which who needs nothing from the others goes ahead: how far, that nothing is overwritten
// before it was read, and that ranks that disagree, or die, are still noticed by all.
#include <signal.h>

#include <random>

#include "group_checks.hpp"

namespace {

/// So many elements that blocks for all ranks of the largest group here still go ahead.
constexpr std::size_t kShort = 40;

struct Counts {
  std::atomic<int> of[16];
};

/// While the others stay away root goes exactly kMostAhead broadcasts ahead.
void how_far() {
  Shared<Counts> done;
  CHECK(run_ranks(3, [&](Group& group) {
    Ints data(kShort);
    group.barrier();
    const int calls = 5 * static_cast<int>(kMostAhead);
    if (group.rank() == 0) {
      for (int call = 0; call < calls; ++call) {
        data = input(call, kShort);
        group.bcast(bytes(data), kType, 0);
        done->of[0] = call + 1;
      }
      return;
    }
    while (done->of[0] < static_cast<int>(kMostAhead)) usleep(1000);
    if (group.rank() == 1) {  // one that keeps up does not help
      for (int call = 0; call < calls; ++call) {
        group.bcast(bytes(data), kType, 0);
        CHECK(data == input(call, kShort));
        done->of[1] = call + 1;
      }
      return;
    }
    while (done->of[1] < static_cast<int>(kMostAhead)) usleep(1000);
    usleep(100 * 1000);  // time enough for more, which there must not be
    CHECK(done->of[0] == static_cast<int>(kMostAhead));
    for (int call = 0; call < calls; ++call) {
      group.bcast(bytes(data), kType, 0);
      CHECK(data == input(call, kShort));
    }
  }));
}

/// Short and long calls of all kinds, roots in turn, every rank at its own pace.
void nothing_is_overwritten(int size, int calls) {
  CHECK(run_ranks(size, [&](Group& group) {
    std::mt19937 same(1), pace(group.rank());
    for (int call = 0; call < calls; ++call) {
      const int root = static_cast<int>(same() % size), kind = static_cast<int>(same() % 12);
      const std::size_t count = same() % 16 == 0 ? 3 * kChunk : same() % kShort;
      if (pace() % 64 == 0) usleep(pace() % 300);
      const Ints mine = input(call + group.rank(), count);
      Ints give = mine, take(count);
      std::vector<Ints> all(size, Ints(count));
      std::vector<Bytes> outs;
      for (int rank = 0; rank < size; ++rank) {
        if (kind == 4) all[rank] = input(call + rank, count);
        outs.push_back(bytes(all[rank]));
      }
      const bool is_root = group.rank() == root;
      if (kind == 0) {
        group.barrier();
      } else if (kind == 1) {
        group.allreduce(bytes(give), bytes(take), kType, ReduceOp::kMax);
        CHECK(take == input(call + size - 1, count));
      } else if (kind == 2) {
        group.reduce(bytes(give), bytes(take), kType, ReduceOp::kMax, root);
        CHECK(!is_root || take == input(call + size - 1, count));
      } else if (kind == 3) {
        group.gather(bytes(give), is_root ? outs : std::vector<Bytes>{}, kType, root);
        for (int rank = 0; rank < size; ++rank) CHECK(!is_root || all[rank] == input(call + rank, count));
      } else if (kind == 4) {
        group.scatter(is_root ? std::vector<ConstBytes>(outs.begin(), outs.end()) : std::vector<ConstBytes>{},
                      bytes(take), kType, root);
        CHECK(take == mine);
      } else {
        group.bcast(bytes(give), kType, root);
        CHECK(give == input(call + root, count));
      }
    }
    group.barrier();
  }));
}

/// Rank 0 broadcasts four elements and goes on; `odd` calls something else. All hear of it, by the same words.
void disagreement(const std::function<void(Group&)>& odd, const std::string& odd_words) {
  CHECK(run_ranks(4, [&](Group& group) {
    Ints data = group.rank() == 0 ? input(0, 4) : Ints(4);
    group.barrier();
    const std::string first = "ranks disagree: rank 2 (pid", other = "calls bcast of 4 int32 with root 0 as #2";
    std::string said;
    try {
      if (group.rank() == 2) odd(group);
      if (group.rank() != 2) group.bcast(bytes(data), kType, 0);
      group.bcast(bytes(data), kType, 0);  // #3
      group.barrier();
    } catch (const MismatchError& error) {
      said = error.what();
    }
    if (said.find(first) == std::string::npos || said.find(odd_words) == std::string::npos ||
        said.find(other) == std::string::npos)
      throw Error("expected " + first + " and " + odd_words + ", got " + said);
    CHECK_THROWS(group.barrier(), MismatchError, "#2 is an earlier call; this is #");
  }));
}

/// Who came before the root that it disagrees with hears of it in that call, and its buffer is as it was.
void a_receiver_that_came_first() {
  Shared<Counts> at;
  CHECK(run_ranks(2, [&](Group& group) {
    Ints data = input(group.rank(), 4 + group.rank());
    group.barrier();
    if (group.rank() == 0) {
      while (at->of[1] == 0) usleep(1000);
      usleep(50 * 1000);  // by then it waits in its call; if not, the test sees less
    }
    at->of[group.rank()] = 1;
    CHECK_THROWS((group.bcast(bytes(data), kType, 0), group.barrier()), MismatchError,
                 "calls bcast of 4 int32 with root 0 as #2");
    CHECK(data == input(group.rank(), 4 + group.rank()));
  }));
}

void root_that_died_while_ahead() {
  Shared<Counts> ended;
  run_ranks(3, [&](Group& group) {
    Ints data(kShort);
    group.barrier();
    if (group.rank() == 0) {
      for (int call = 0; call < 3; ++call) {
        data = input(call, kShort);
        group.bcast(bytes(data), kType, 0);
      }
      kill(getpid(), SIGKILL);
    }
    for (int call = 0; call < 3; ++call) {  // what it has given arrives
      group.bcast(bytes(data), kType, 0);
      CHECK(data == input(call, kShort));
    }
    CHECK_THROWS(group.bcast(bytes(data), kType, 0), PeerDied, "rank 0 (pid");
    ended->of[group.rank()] = 1;
  });
  CHECK(ended->of[1] == 1 && ended->of[2] == 1);
}

void receiver_that_died_or_is_late() {
  Shared<Counts> ended;
  run_ranks(3, [&](Group& group) {
    Ints data(kShort);
    group.barrier();
    if (group.rank() == 2) kill(getpid(), SIGKILL);
    const auto forever = [&] {
      while (true) group.bcast(bytes(data), kType, 0);
    };
    CHECK_THROWS(forever(), PeerDied, "rank 2 (pid");
    ended->of[group.rank()] = 1;
  });
  CHECK(ended->of[0] == 1 && ended->of[1] == 1);
  Shared<Counts> gave_up;
  CHECK(run_ranks(2, [&](Group& group) {
    Ints data(kShort);
    group.barrier();
    if (group.rank() == 1) {
      while (gave_up->of[0] == 0) usleep(1000);
      CHECK_THROWS(group.bcast(bytes(data), kType, 0), PeerTimeout, "waiting for rank 1 (pid");
      return;
    }
    for (std::uint64_t call = 0; call < kMostAhead; ++call) group.bcast(bytes(data), kType, 0, 0.2);
    CHECK_THROWS(group.bcast(bytes(data), kType, 0, 0.2), PeerTimeout, "waiting for rank 1 (pid");
    gave_up->of[0] = 1;
  }));
}

void digests() {
  const Signature usual{.sequence = 7, .count = 3, .root = 1};
  Signature told = usual;
  told.notice = 5;
  CHECK(told.digest() == usual.digest());
  const std::function<void(Signature&)> changes[] = {
      [](Signature& s) { ++s.sequence; },
      [](Signature& s) { ++s.count; },
      [](Signature& s) { ++s.layout; },
      [](Signature& s) { ++s.check; },
      [](Signature& s) { ++s.root; },
      [](Signature& s) { ++s.kind; },
      [](Signature& s) { s.type = kType; },
      [](Signature& s) { s.op = 0; },
      [](Signature& s) { s.memory = MemoryKind::kDevice; },
  };
  for (const auto& change : changes) {
    Signature other = usual;
    change(other);
    CHECK(other != usual && other.digest() != usual.digest());
  }
}

}  // namespace

int main() {
  digests();
  change_sizes("4k", "1k", "4k", "1k");
  set_setting("ACCDP_LIVENESS_S", "0.05");
  how_far();
  nothing_is_overwritten(2, 4000);
  nothing_is_overwritten(3, 3000);
  nothing_is_overwritten(5, 1500);
  Ints data(5);
  disagreement([&](Group& group) { group.bcast(bytes(data), kType, 2); }, "calls bcast of 5 int32 with root 2 as #2");
  disagreement([&](Group& group) { group.bcast(bytes(data), kType, 0); }, "calls bcast of 5 int32 with root 0 as #2");
  disagreement([&](Group& group) { group.barrier(); }, "calls barrier as #2");
  disagreement([&](Group& group) { group.gather(bytes(data), {}, kType, 1); }, "calls gather of 5 int32 with root 1");
  Ints longer(100 * kChunk);
  disagreement([&](Group& group) { group.bcast(bytes(longer), kType, 0); }, "calls bcast of 102400 int32 with root 0");
  a_receiver_that_came_first();
  root_that_died_while_ahead();
  receiver_that_died_or_is_late();
}
