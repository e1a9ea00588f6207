// Collectives and messages at counts around the chunk size: between processes of one node, and between threads that
// play ranks of several nodes. Failures and wrong arguments.
#include "group_checks.hpp"

/// More than leaders exchange in one go.
void long_reduction(Group& group) {
  const std::size_t count = (8 << 20) / sizeof(std::int32_t) + 5;
  Ints data = input(group.rank(), count);
  group.allreduce(bytes(data), bytes(data), kType, ReduceOp::kMax);
  CHECK(data == input(group.size() - 1, count));
}

void disagreement(Group& group) {
  Ints data(8 + (group.rank() == 1 ? 1 : 0));
  // The barrier, because a group that has failed elsewhere says so while it is still being made. A rank that wakes up
  // late in the barrier may hear of the failure there.
  // Who agrees with root may have returned, as root has, and hears of it in the next call.
  CHECK_THROWS((group.barrier(), group.bcast(bytes(data), kType, 0), group.barrier()), MismatchError, "9");
  CHECK_THROWS(group.barrier(), MismatchError, "9");  // every later call says the first reason
}

void lateness(Group& group, std::atomic<bool>& gave_up) {
  if (group.rank() == 0) {
    CHECK_THROWS(group.barrier(0.2), PeerTimeout, "rank 1");
    gave_up = true;
  } else {
    while (!gave_up) usleep(1000);
    // Between nodes what came of the other rank's barrier may do for one; and this rank may have to find out by itself.
    CHECK_THROWS((group.barrier(2), group.barrier(2)), PeerTimeout, "");
  }
}

void departure(Group& group) {
  if (group.rank() == 1) return;
  CHECK_THROWS(group.barrier(), PeerDied, "rank 1");
}

void aborted(Group& group) {
  if (group.rank() == 1) {
    usleep(100 * 1000);
    group.abort("no paper left");
  }
  CHECK_THROWS(group.barrier(), Error, "rank 1 ");
  CHECK_THROWS(group.barrier(), Error, "no paper left");
}

/// The others get as much of a long text as there is room for, in whole characters. `ascii`: so many come first.
void aborted_at_length(Group& group, int ascii) {
  const std::string character = "\u20ac";  // three bytes
  if (group.rank() == 1) {
    std::string reason(ascii, 'x');
    for (int i = 0; i < 400; ++i) reason += character;
    return group.abort(reason);
  }
  try {
    group.barrier();
    CHECK(false);
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK(text.size() > 900 && text.size() < 1100 && text.ends_with(character));
  }
}

void wrong_arguments(Group& group) {
  Ints data(4), other(5);
  const int size = group.size();
  CHECK_THROWS(group.bcast(bytes(data), kType, size), UsageError, "root=" + std::to_string(size));
  CHECK_THROWS(group.bcast(bytes(data), kType, -1), UsageError, "root=-1");
  CHECK_THROWS(group.allreduce(bytes(data), bytes(other), kType, ReduceOp::kSum), UsageError, "20 bytes: expected 16");
  CHECK_THROWS(group.allreduce(bytes(data), bytes(data), Datatype::kF32, ReduceOp::kBor), UsageError, "op=bor");
  CHECK_THROWS(group.allgather(bytes(data), {}, kType), UsageError, "one block per rank");
  CHECK_THROWS(group.send(bytes(data), size, 0), UsageError, "dst=");
  CHECK_THROWS(group.receive(bytes(data), -2, 0), UsageError, "src=-2");
  one_block(group, 3);  // nothing was sent, so all is well
}

const std::vector<std::vector<int>> kShapes{{0, 0, 1, 1}, {0, 1, 2, 3}, {0, 0, 0, 1},
                                            {0, 1, 0},    {0, 1},       {0, 1, 1, 0, 2}};

int main() {
  change_sizes("4k", "1k", "8k", "1k");
  for (int size : {1, 2, 3, 4}) CHECK(run_ranks(size, everything));
  for (const std::vector<int>& nodes : kShapes) run_nodes(nodes, everything);
  CHECK(run_ranks(3, disagreement));
  Shared<std::atomic<bool>> gave_up;
  CHECK(run_ranks(2, [&](Group& group) { lateness(group, *gave_up); }));
  CHECK(run_ranks(3, departure));
  CHECK(run_ranks(3, aborted));
  for (int ascii : {0, 1, 2}) CHECK(run_ranks(2, [&](Group& group) { aborted_at_length(group, ascii); }));
  CHECK(run_ranks(3, wrong_arguments));
  run_nodes({0, 0, 1, 1}, disagreement);
  *gave_up = false;
  run_nodes({0, 1}, [&](Group& group) { lateness(group, *gave_up); });
  run_nodes({0, 0, 1}, aborted);
  run_nodes({0, 1, 1}, wrong_arguments);
  run_nodes({0, 1}, long_reduction);
}
