// Send and receive: any order of tags, any source, messages of all lengths under way at once, to oneself.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "messages.hpp"

using namespace accdp;
using namespace std::chrono_literals;

/// What one rank sends to another: equal on both sides, because both draw it from the same seed.
struct Sending {
  int tag;
  std::size_t bytes;
};
std::vector<Sending> plan(int from, int to, int messages) {
  std::mt19937 random(1000 * from + to);
  std::vector<Sending> plans;
  for (int i = 0; i < messages; ++i) {
    // Below and above the eager limit (1k; between nodes 60 KiB), the ring (8k), and many rings.
    const std::size_t limits[] = {1, 64, 1024, 1025, 9000, 60000, 200000};
    plans.push_back({static_cast<int>(random() % 4), random() % limits[random() % std::size(limits)]});
  }
  return plans;
}

/// All ranks send to all, themselves too, and receive in an order that has nothing to do with that of the sends,
/// except that messages with one tag from one rank arrive in order.
void any_order(Group& group) {
  constexpr int kMessages = 40;
  const int size = group.size(), me = group.rank();
  struct Open {
    MessageHandle handle;
    Data data, wanted;
  };
  std::vector<Open> open;
  open.reserve(2 * kMessages * size);  // places stay where they are
  struct Turn {
    bool sends;
    int peer, number;
    Sending plan;
  };
  std::vector<Turn> turns;
  for (int peer = 0; peer < size; ++peer) {
    int number = 0;
    for (const Sending& p : plan(me, peer, kMessages)) turns.push_back({true, peer, number++, p});
    number = 0;
    for (const Sending& p : plan(peer, me, kMessages)) turns.push_back({false, peer, number++, p});
  }
  std::mt19937 random(me);
  std::shuffle(turns.begin(), turns.end(), random);
  // Back into order within each (direction, peer, tag).
  std::map<std::tuple<bool, int, int>, std::vector<Turn>> lanes;
  for (const Turn& t : turns) lanes[{t.sends, t.peer, t.plan.tag}].push_back(t);
  for (auto& [lane, all] : lanes)
    std::sort(all.begin(), all.end(), [](const Turn& a, const Turn& b) { return a.number > b.number; });
  for (const Turn& slot : turns) {
    std::vector<Turn>& lane = lanes[{slot.sends, slot.peer, slot.plan.tag}];
    const Turn t = lane.back();
    lane.pop_back();
    const int from = t.sends ? me : t.peer, to = t.sends ? t.peer : me;
    Data wanted = content(from, to, t.number, t.plan.bytes);
    open.push_back({nullptr, t.sends ? wanted : Data(t.plan.bytes), wanted});
    Open& o = open.back();
    o.handle = t.sends ? group.send(o.data, t.peer, t.plan.tag) : group.receive(o.data, t.peer, t.plan.tag);
    if (random() % 16 == 0) usleep(500);  // lets the background thread take over now and then
  }
  std::shuffle(open.begin(), open.end(), random);
  for (Open& o : open) {
    group.post_office().wait(o.handle);
    CHECK(o.handle->done);
    CHECK(o.data == o.wanted);
  }
  group.barrier();
}

void any_source(Group& group) {
  const int size = group.size(), me = group.rank();
  int tag = 3;  // another one each time, since some ranks are ahead of others
  for (std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{5000}}) {
    ++tag;
    if (me != 0) {
      const Data data = content(me, 0, 0, bytes);
      group.post_office().wait(group.send(data, 0, tag));
      continue;
    }
    std::vector<int> seen(size);
    for (int i = 1; i < size; ++i) {
      Data data(bytes);
      const MessageHandle message = group.receive(data, -1, tag);
      group.post_office().wait(message);
      CHECK(message->peer > 0 && message->peer < size);
      CHECK(data == content(message->peer, 0, 0, bytes));
      ++seen[message->peer];
    }
    for (int i = 1; i < size; ++i) CHECK(seen[i] == 1);
  }
  group.barrier();
}

/// A send to oneself is done at once, whether or not anybody has asked for it.
void to_oneself(Group& group) {
  for (std::size_t bytes : {std::size_t{0}, std::size_t{10}, std::size_t{100000}}) {
    const Data first = content(1, 2, 3, bytes), second = content(4, 5, 6, bytes);
    Data a(bytes), b(bytes);
    const MessageHandle early = group.receive(a, group.rank(), 1);
    for (const Data* data : {&first, &second}) {
      const MessageHandle sent = group.send(*data, group.rank(), 1);
      CHECK(sent->done);
    }
    const MessageHandle late = group.receive(b, -1, 1);
    group.post_office().wait(early);
    group.post_office().wait(late);
    CHECK(a == first && b == second && late->peer == group.rank());
  }
}

void callbacks(Group& group) {
  const int other = 1 - group.rank();
  std::atomic<int> called{0};
  Data out = content(group.rank(), other, 0, 9000), in(9000);
  const MessageHandle receive = group.receive(in, other, 0), send = group.send(out, other, 0);
  for (const MessageHandle& message : {receive, send}) group.post_office().on_done(message, [&] { ++called; });
  // Nobody waits: the background thread moves them.
  const auto began = Clock::now();
  while (called < 2 && Clock::now() - began < 30s) usleep(1000);
  CHECK(called == 2 && in == content(other, group.rank(), 0, 9000));
  group.post_office().on_done(send, [&] { ++called; });
  CHECK(called == 3);
  group.barrier();
}

/// From begin to end, one after the other: what is at hand already, what is not, and in which order it was sent.
void at_once(Group& group) {
  const int size = group.size(), next = (group.rank() + 1) % size, previous = (group.rank() + size - 1) % size;
  for (int number = 0; number < 300; ++number) {
    const std::size_t bytes = number % 5 == 0 ? 0 : number % 7 == 0 ? 1025 + number : number;
    const Data out = content(group.rank(), next, number, bytes);
    Data in(bytes);
    if (group.rank() % 2 == 0) group.send_now(out, next, number % 3);
    CHECK(group.receive_now(in, number % 11 == 0 ? -1 : previous, number % 3) == previous);
    if (group.rank() % 2 != 0) group.send_now(out, next, number % 3);
    CHECK(in == content(previous, group.rank(), number, bytes));
  }
  // The second first, and one that another receive has asked for.
  const Data first = content(group.rank(), next, 1, 10), second = content(group.rank(), next, 2, 10);
  Data asked(10), in(10);
  const MessageHandle early = group.receive(asked, previous, 1);
  group.send_now(first, next, 1);
  group.send_now(second, next, 2);
  group.send_now(second, next, 1);
  group.receive_now(in, previous, 2);
  CHECK(in == content(previous, group.rank(), 2, 10));
  group.receive_now(in, previous, 1);
  CHECK(in == content(previous, group.rank(), 2, 10));
  group.post_office().wait(early);
  CHECK(asked == content(previous, group.rank(), 1, 10));
  group.barrier();
}

/// One that waits on the spot, or finds something there, takes nothing that another receive asked for before.
void asked_before(Group& group) {
  for (int turn = 0; turn < 400; ++turn) {
    const bool has_come = turn % 2 == 0;
    const Data first = content(0, 1, 1, 10), second = content(0, 1, 2, 10);
    group.barrier();
    if (group.rank() == 0) {
      if (has_come)
        group.barrier();
      else
        usleep(30);
      group.send_now(first, 1, 1);
      group.send_now(second, 1, 1);
      group.barrier();
      continue;
    }
    Data asked(10), in(10);
    const MessageHandle early = group.receive(asked, 0, 1);
    if (has_come) {
      group.barrier();
      group.barrier();
    }
    group.receive_now(in, 0, 1);
    if (!has_come) group.barrier();
    group.post_office().wait(early);
    CHECK(asked == first && in == second);
  }
  group.barrier();
}

/// Long messages in both directions at once, around the limits of what is copied at a time.
void long_both_ways(Group& group) {
  const int other = 1 - group.rank();
  for (std::size_t bytes : {1025, 8192, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, (9 << 20) + 5}) {
    const Data out = content(group.rank(), other, 3, bytes);
    Data in(bytes);
    const MessageHandle receive = group.receive(in, other, 1), send = group.send(out, other, 1);
    group.post_office().wait(send);
    group.post_office().wait(receive);
    CHECK(in == content(other, group.rank(), 3, bytes));
  }
  group.barrier();
}

struct Heard {
  std::atomic<bool> it{false};
};
/// That a long message was copied is told through a ring that short ones fill, of which nobody has asked for one. The
/// sender hears of it although the receiver has got what it wanted, and begins nothing else.
void answer_without_room(Group& group, const Shared<Heard>& heard) {
  constexpr int kMessages = 8;  // of 1 KiB with their heads: what a ring holds here
  const Data brief = content(1, 0, 1, 1024 - sizeof(MessageHead)), longer = content(0, 1, 2, 128 << 10);
  Data in(group.rank() == 0 ? brief.size() : longer.size());
  if (group.rank() == 1) {
    for (int i = 0; i < kMessages; ++i) group.send_now(brief, 0, 1);
    group.barrier();
    group.receive_now(in, 0, 2);
    CHECK(in == longer);
    const auto began = Clock::now();
    while (!heard->it && Clock::now() - began < 10s) usleep(1000);
    CHECK(heard->it);
    return;
  }
  group.barrier();
  group.post_office().wait(group.send(longer, 1, 2), 10);
  heard->it = true;
  for (int i = 0; i < kMessages; ++i) {
    group.receive_now(in, 1, 1);
    CHECK(in == brief);
  }
}

constexpr std::size_t kAllowance = 1 << 20;

/// What nobody asks for goes ahead as long as no more than 1 MiB of it lies there; the rest waits, and all of it
/// arrives. Once it has, as much may go ahead again.
void allowance(Group& group, std::size_t bytes) {
  const std::size_t ahead = kAllowance / (sizeof(MessageHead) + bytes), messages = 3 * ahead;
  const Data data = content(0, 1, 1, bytes);
  for (int round = 0; round < 2; ++round) {
    if (group.rank() == 1) {
      group.barrier();  // by now all are on their way
      for (std::size_t i = 0; i < messages; ++i) {
        Data in(bytes);
        group.receive_now(in, 0, 1);
        CHECK(in == data);
      }
      group.send_now({}, 0, 2);
      continue;
    }
    std::vector<MessageHandle> sent;
    for (std::size_t i = 0; i < messages; ++i) sent.push_back(group.send(data, 1, 1));
    CHECK(std::all_of(sent.begin(), sent.begin() + ahead, [](const MessageHandle& m) { return m->done.load(); }));
    CHECK(std::none_of(sent.begin() + ahead, sent.end(), [](const MessageHandle& m) { return m->done.load(); }));
    group.barrier();
    for (const MessageHandle& message : sent) group.post_office().wait(message);
    group.receive_now({}, 1, 2);
  }
}

void ahead_to_other_nodes(Group& group) {
  allowance(group, 1000);
  // What fills it to the last byte leaves no room for an empty one either.
  const Data quarter = content(0, 1, 2, kAllowance / 4 - sizeof(MessageHead));
  if (group.rank() == 1) {
    group.barrier();
    for (int i = 0; i < 4; ++i) {
      Data in(quarter.size());
      group.receive_now(in, 0, 1);
      CHECK(in == quarter);
    }
    group.receive_now({}, 0, 1);
    group.send_now({}, 0, 2);
  } else {
    std::vector<MessageHandle> sent;
    for (int i = 0; i < 4; ++i) sent.push_back(group.send(quarter, 1, 1));
    sent.push_back(group.send({}, 1, 1));
    CHECK(!sent.back()->done);
    group.barrier();
    for (const MessageHandle& message : sent) group.post_office().wait(message);
    group.receive_now({}, 1, 2);
  }
  // Of all lengths, empty ones, too, asked for in the other order.
  const std::size_t lengths[] = {0, 900, 60'000, 250'000, 300'000, 0, 250'000, 250'000, 250'000, 250'000, 900, 0};
  const int count = std::size(lengths);
  std::vector<Data> data;
  for (int i = 0; i < count; ++i) data.push_back(content(0, 1, i, lengths[i]));
  if (group.rank() == 1) {
    group.barrier();
    for (int i = count - 1; i >= 0; --i) {
      Data in(lengths[i]);
      group.receive_now(in, 0, i);
      CHECK(in == data[i]);
    }
  } else {
    std::vector<MessageHandle> sent;
    for (int i = 0; i < count; ++i) sent.push_back(group.send(data[i], 1, i));
    group.barrier();
    for (const MessageHandle& message : sent) group.post_office().wait(message);
  }
  group.barrier();
}

void refused(Group& group) {
  CHECK(!group.why_no_single_copy().empty());
  any_order(group);
  long_both_ways(group);
}

void all_kinds(Group& group) {
  at_once(group);
  any_order(group);
  any_source(group);
  to_oneself(group);
  group.barrier();
}

/// A long message that went ahead lies in MPI by its number, which comes round again, until somebody receives it.
void unread_while_numbers_come_round(Group& group, std::size_t first_bytes) {
  constexpr std::size_t kLong = 4 * Wire::kAtOnceBytes, kLongest = 5 * Wire::kAtOnceBytes;  // the latter are asked for
  const Data unread = content(0, 1, 0, first_bytes), last = content(0, 1, 2, kLong);
  const Data others = content(0, 1, 1, Wire::kAtOnceBytes + 1);
  CHECK(first_bytes == kLong || first_bytes == kLongest);
  if (group.rank() == 0) {
    const MessageHandle first = group.start_send(unread, 1, 7);
    for (std::uint64_t i = 1; i < Wire::kDataTags; ++i) group.send_now(others, 1, 8);
    const MessageHandle second = group.send(last, 1, 9);
    for (const MessageHandle& message : {first, second})
      if (message) group.post_office().wait(message);
  } else {
    Data in(others.size());
    for (std::uint64_t i = 1; i < Wire::kDataTags; ++i) group.receive_now(in, 0, 8);
    CHECK(in == others);
    Data first(first_bytes), second(kLong);
    if (first_bytes == kLongest) group.receive_now(first, 0, 7);
    group.receive_now(second, 0, 9);
    if (first_bytes != kLongest) group.receive_now(first, 0, 7);
    CHECK(second == last && first == unread);
  }
}

int main() {
  make_limits_small();
  for (const char* cma : {"off", "auto"}) {
    set_setting("ACCDP_CMA", cma);
    for (int size : {1, 2, 3, 4}) CHECK(run_ranks(size, all_kinds));
    CHECK(run_ranks(2, long_both_ways));
    const Shared<Heard> heard;
    CHECK(run_ranks(2, [&](Group& group) { answer_without_room(group, heard); }));
  }
  set_setting("ACCDP_RING_BYTES", "2M");
  for (const char* cma : {"off", "auto"}) {
    set_setting("ACCDP_CMA", cma);
    for (std::size_t bytes : {0, 1000}) CHECK(run_ranks(2, [&](Group& group) { allowance(group, bytes); }));
  }
  make_limits_small();
  CHECK(run_closed_ranks(2, refused));
  for (const std::vector<int>& nodes : {std::vector{0, 1}, {0, 0, 1, 1}, {0, 1, 0}, {0, 1, 2}})
    run_nodes(nodes, all_kinds);
  run_nodes({0, 1}, ahead_to_other_nodes);
  run_nodes({0, 1}, long_both_ways);
  for (std::size_t pieces : {4, 5})
    run_nodes({0, 1}, [&](Group& g) { unread_while_numbers_come_round(g, pieces * Wire::kAtOnceBytes); });
  CHECK(run_ranks(2, asked_before));
  CHECK(run_ranks(2, callbacks));
  run_nodes({0, 1}, callbacks);
}
