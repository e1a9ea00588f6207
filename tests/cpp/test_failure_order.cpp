// What a rank did before it failed counts: who waited for just that ends well, though the failure is known by then.
// One that left in order is not taken for dead: MPI can still be used and given back.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "base/settings.hpp"
#include "node/waiter.hpp"
#include "ranks.hpp"

using namespace accdp;
using namespace std::chrono_literals;

namespace {

/// Does something at the very moment when its rank looks for failures: after it had looked in vain for what it awaits.
class MomentaryWire : public ThreadWire {
 public:
  using ThreadWire::ThreadWire;
  std::function<void()> at_first_look;

  bool take(Tag tag, int& from, std::vector<std::byte>& message) override {
    if (tag == kFailure && at_first_look) std::exchange(at_first_look, {})();
    return ThreadWire::take(tag, from, message);
  }
};

/// Two ranks on two nodes, both of this thread.
struct Two {
  std::shared_ptr<Mail> mail = std::make_shared<Mail>();
  std::shared_ptr<MomentaryWire> wire = std::make_shared<MomentaryWire>(mail, 1, 2);
  std::vector<Peer> peers{{"host0", getpid(), 0, 0}, {"host1", getpid(), 0, 1}};
  Group other{"test", 0, peers, -1, 30, std::make_shared<ThreadWire>(mail, 0, 2)};
  Group group{"test", 1, peers, -1, 30, wire};
};

void collective_between_nodes() {
  Two two;
  // Its own part of the barrier is on its way when it looks; the other passes, and fails then.
  bool looked = false;
  two.wire->at_first_look = [&] {
    two.wire->at_first_look = [&] {
      two.other.barrier();
      two.other.abort("later than that");
      looked = true;
    };
  };
  two.group.barrier();
  CHECK(looked);
  CHECK_THROWS(two.group.barrier(), Error, "later than that");
}

/// await(office, message): until it is done.
void message_between_nodes(const std::function<void(PostOffice&, const MessageHandle&)>& await) {
  Two two;
  const std::vector<std::byte> sent(100, std::byte{7});
  std::vector<std::byte> came(sent.size()), missed(1);
  const MessageHandle in = two.group.receive(came, 0, 1, -1), never = two.group.receive(missed, 0, 2, -1);
  bool looked = false;
  two.wire->at_first_look = [&] {
    const MessageHandle out = two.other.send(sent, 1, 1);
    two.other.post_office().wait(out);
    two.other.abort("later than that");
    looked = true;
  };
  await(two.group.post_office(), in);
  CHECK(looked && came == sent);
  CHECK_THROWS(await(two.group.post_office(), never), Error, "later than that");
}

/// A rank of the node that hands its step over and then fails, between two looks of the one that waits.
class Momentary : public Watch {
 public:
  explicit Momentary(Board& board) : board_(board) {}
  bool step = false;
  bool has_failed() override {
    board_.fail(FailureKind::kOther, "later than that");
    return step = true;
  }
  void look_around(bool had_failed) override {
    CHECK(had_failed);
    throw_failure(FailureKind::kOther, "later than that");
  }

 private:
  Board& board_;
};

void wait_on_a_node() {
  Board board(-1, 1, 0);
  Momentary watch(board);
  Patience sleep_at_once{Habit(0ns), Habit(0ns)};
  wait_until(board, kCollective, sleep_at_once, [&] { return watch.step; }, watch);
  CHECK(watch.step);
  CHECK_THROWS(wait_until(board, kCollective, sleep_at_once, [] { return false; }, watch), Error, "later than that");
}

/// Of a group that fails, the worst that is thought of its wire.
class Judged : public ThreadWire {
 public:
  using ThreadWire::ThreadWire;
  void worsen(Health health) noexcept override { worst = std::max(worst, health); }
  Health worst = kWell;
};

void a_rank_that_left() {
  const auto mail = std::make_shared<Mail>();
  const auto wire = std::make_shared<Judged>(mail, 0, 2);
  const std::vector<Peer> peers{{"host0", getpid(), 0, 0}, {"host1", getpid(), 0, 1}};
  Group group("test", 0, peers, -1, 30, wire);
  Group("test", 1, peers, -1, 30, std::make_shared<ThreadWire>(mail, 1, 2)).close();
  CHECK_THROWS(group.barrier(), PeerDied, "left the group");
  CHECK(wire->worst == Wire::kGroupFailed);
}

/// In place the group reads a copy of its own. MPI may be sending that while others are told of the failure, and later.
void memory_of_a_call_that_fails() {
  constexpr std::size_t kBytes = 100'000;
  const auto mail = std::make_shared<Mail>();
  mail->has_come = [](int, int, ConstBytes message) { return message.size() < kBytes; };
  std::vector<ConstBytes> under_way[2];
  mail->leaves = [&](int from, int, ConstBytes message) {
    if (message.size() >= kBytes) under_way[from].push_back(message);
  };
  run_nodes(
      {0, 1},
      [&](Group& group) {
        const std::byte content{static_cast<unsigned char>(group.rank() + 1)};
        std::vector<std::byte> memory(2 * kBytes, content);
        const Bytes all(memory), first = all.first(kBytes), second = all.subspan(kBytes);
        CHECK_THROWS(group.alltoall({first, second}, {first, second}, Datatype::kU8, 0.3), PeerTimeout, "Timed out");
        const auto& mine = under_way[group.rank()];
        CHECK(mine.size() == 1);
        for (const ConstBytes& message : mine)
          CHECK(std::ranges::all_of(message, [&](std::byte one) { return one == content; }));
      },
      kOwnCores, mail);
}

/// Of a failure it tells others late, or it is late itself to look for what comes.
class LateWire : public ThreadWire {
 public:
  using ThreadWire::ThreadWire;
  bool says_late = false;
  std::function<void(std::size_t bytes)> before_receive = [](std::size_t) {};
  Request isend(ConstBytes data, int to, Tag tag, Form form) override {
    return says_late && tag == kFailure ? Request{} : ThreadWire::isend(data, to, tag, form);
  }
  Request irecv(Bytes data, int from, Tag tag, Form form) override {
    before_receive(data.size());
    return ThreadWire::irecv(data, from, tag, form);
  }
};

constexpr std::size_t kGivenUp = 100'000;  // bytes of a message that does not leave its rank at once

/// Two ranks on a node and one on another. Of a failure rank 0 tells the others late, and rank 2 looks for messages of
/// kGivenUp bytes when the others' body is over.
void with_late_ranks(const std::function<void(Group& group)>& body) {
  const auto mail = std::make_shared<Mail>();
  std::atomic<int> over{0};
  const Segment segment(2);
  std::vector<Peer> peers;
  for (int node : {0, 0, 1}) peers.push_back({"host" + std::to_string(node), getpid(), 0, node});
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      const auto wire = std::make_shared<LateWire>(mail, rank, 3);
      wire->says_late = rank == 0;
      if (rank == 2)
        wire->before_receive = [&](std::size_t bytes) {
          while (bytes == kGivenUp && over < 2) std::this_thread::sleep_for(1ms);
        };
      Group group("test", rank, peers, rank < 2 ? segment.fd() : -1, 30, wire);
      body(group);
      ++over;
      while (over < 3) std::this_thread::sleep_for(1ms);
    });
}

/// Rank 0 fails, and others have not heard of it when rank 1, of its node, gives up what it sends: who gets that has
/// heard of the failure from rank 1, although all that it waits for has come.
void what_a_mate_gives_up(bool sends_as_much) {
  constexpr std::size_t kShort = 4;
  with_late_ranks([&](Group& group) {
    const int rank = group.rank();
    const std::vector<std::byte> mine(kGivenUp, std::byte(rank));
    std::vector<std::byte> got(2 * kGivenUp);
    std::vector<ConstBytes> ins(3, ConstBytes(mine).first(kShort));
    std::vector<Bytes> outs;
    if (rank < 2) {
      ins[2] = mine;
      for (int from : {0, 1, 2}) outs.push_back(Bytes(got).subspan(from * kShort, kShort));
    } else {
      outs = {Bytes(got).first(kGivenUp), Bytes(got).last(kGivenUp), {}};
    }
    std::vector<std::byte> own(rank == 2 && sends_as_much ? 2 * kGivenUp : kShort);  // what counts as sent
    ins[rank] = outs[rank] = own;
    CHECK_THROWS(group.alltoall(ins, outs, Datatype::kU8, rank == 0 ? 1 : 10), PeerTimeout, "Timed out after 1 s");
  });
}

/// The same of a message that is sent ahead.
void what_a_mate_gives_up_to_send() {
  std::atomic<bool> is_sent{false};
  with_late_ranks([&](Group& group) {
    std::vector<std::byte> data(kGivenUp);
    if (group.rank() == 0) {
      while (!is_sent) std::this_thread::sleep_for(1ms);
      group.abort("had enough");
    } else if (group.rank() == 1) {
      const MessageHandle sent = group.send(data, 2, 1);
      is_sent = true;
      CHECK_THROWS(group.post_office().wait(sent), Error, "had enough");
    } else {
      CHECK_THROWS(group.receive_now(data, 1, 1), Error, "had enough");
    }
  });
}

/// Nothing of the pipeline's comes from rank 0: who waits for it looks for failures and at the clock, as for any other.
void what_rank_0_owes() {
  const auto mail = std::make_shared<Mail>();
  mail->has_come = [](int from, int, ConstBytes message) { return from != 0 || message.size() < kGivenUp; };
  set_setting("ACCDP_ALLREDUCE", "pipeline");
  const Body body = [](Group& group) {
    std::vector<float> values(1 << 20);
    const Bytes memory = std::as_writable_bytes(std::span(values));
    const double timeout_s = group.rank() == 1 ? 0.3 : 10;
    CHECK_THROWS(group.allreduce(memory, memory, Datatype::kF32, ReduceOp::kSum, timeout_s), PeerTimeout,
                 "after 0.3 s");
  };
  run_nodes({0, 1}, body, kOwnCores, mail);
  set_setting("ACCDP_ALLREDUCE", "auto");
}

}  // namespace

int main() {
  what_rank_0_owes();
  what_a_mate_gives_up_to_send();
  for (bool sends_as_much : {true, false}) what_a_mate_gives_up(sends_as_much);
  memory_of_a_call_that_fails();
  a_rank_that_left();
  collective_between_nodes();
  message_between_nodes([](PostOffice& office, const MessageHandle& message) { office.wait(message); });
  // Only asked now and then, and what had come by the first look is all that the second may count on.
  message_between_nodes([](PostOffice& office, const MessageHandle& message) {
    while (!office.test(message)) continue;
    office.wait(message);  // which tells what became of it
  });
  wait_on_a_node();
}
