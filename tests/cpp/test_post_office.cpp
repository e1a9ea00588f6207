// Send and receive: any order of tags, any source, messages of all lengths under way at once, to oneself, too late.
#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <random>

#include "base/settings.hpp"
#include "node/peer_memory.hpp"
#include "ranks.hpp"

using namespace accdp;
using namespace std::chrono_literals;

using Data = std::vector<std::byte>;

Data content(int from, int to, int number, std::size_t bytes) {
  Data data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(from * 59 + to * 31 + number * 7 + i);
  return data;
}

/// What one rank sends to another: equal on both sides, because both draw it from the same seed.
struct Sending {
  int tag;
  std::size_t bytes;
};
std::vector<Sending> plan(int from, int to, int messages) {
  std::mt19937 random(1000 * from + to);
  std::vector<Sending> plans;
  for (int i = 0; i < messages; ++i) {
    // Below and above the eager limit (1k), the ring (8k), and many rings.
    const std::size_t limits[] = {1, 64, 1024, 1025, 9000, 60000};
    plans.push_back({static_cast<int>(random() % 4), random() % limits[random() % 6]});
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
    CHECK(group.post_office().is_done(o.handle));
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
      CHECK(group.post_office().is_done(sent));
    }
    const MessageHandle late = group.receive(b, -1, 1);
    group.post_office().wait(early);
    group.post_office().wait(late);
    CHECK(a == first && b == second && late->peer == group.rank());
  }
}

/// A receive that nobody answers is given up, and the group goes on.
void too_late(Group& group) {
  const int me = group.rank();
  Data data(10);
  if (me == 0)
    CHECK_THROWS(group.post_office().wait(group.receive(data, 1, 5, 0.1)), PeerTimeout,
                 "recv of 10 bytes, tag 5 Timed out after 0.1 s");
  group.barrier();
  if (me == 0) {
    const Data small = content(0, 1, 1, 10);
    group.post_office().wait(group.send(small, 1, 7));
    Data answer(10);
    group.post_office().wait(group.receive(answer, 1, 5));
    CHECK(answer == content(1, 0, 2, 10));
  } else if (me == 1) {
    group.post_office().wait(group.receive(data, 0, 7));
    CHECK(data == content(0, 1, 1, 10));
    group.post_office().wait(group.send(content(1, 0, 2, 10), 0, 5));
  }
  group.barrier();
}

/// A long send that nobody asks for fails the group: its request lies at the receiver, where a retry's would be
/// mistaken for it. On one node the receiver hears of it; between nodes it may only time out, but gets no other
/// message's bytes.
void given_up(Group& group) {
  const Data stale = content(0, 1, 1, 20000);
  if (group.rank() == 0) {
    CHECK_THROWS(group.post_office().wait(group.send(stale, 1, 1, 0.1)), PeerTimeout, "send of 20000 bytes, tag 1");
    CHECK_THROWS(group.send(stale, 1, 1), PeerTimeout, "send of 20000 bytes, tag 1");
    return;
  }
  usleep(2'000'000);  // by far more than a busy machine may keep the other rank from its core
  Data late(20000);
  CHECK_THROWS(group.post_office().wait(group.receive(late, 0, 1, 1)), PeerTimeout, "of 20000 bytes, tag 1");
  CHECK(late != stale);
}

void wrong_size(Group& group, std::size_t bytes) {
  if (group.rank() == 0) {
    const Data data(bytes);
    const MessageHandle sent = group.send(data, 1, 4);
    try {  // a short message is on its way before anybody compares sizes
      group.post_office().wait(sent);
    } catch (const MismatchError&) {
    }
    CHECK_THROWS(group.barrier(), MismatchError, "sends " + std::to_string(bytes) + " bytes, tag 4");
    return;
  }
  Data data(bytes + 8);
  CHECK_THROWS(group.post_office().wait(group.receive(data, 0, 4)), MismatchError,
               "which receives " + std::to_string(bytes + 8));
  CHECK_THROWS(group.send(data, 0, 1), MismatchError, "tag 4");
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

/// A rank alone; shared as the bindings share groups.
std::shared_ptr<Group> alone() {
  const std::vector<Peer> peers{{"host", getpid(), 0, 0}};
  return {new Group("test", 0, peers, -1, 30, nullptr), Group::End()};
}

thread_local bool t_interrupted = false;

/// Ctrl-C is for the thread that it comes to, whether that moves the messages or another one does. The buffers of all
/// are free then: each has ended, the others' with the group's failure.
void interrupted(bool drives) {
  const auto group = alone();
  PostOffice& office = group->post_office();
  Data mine(10), theirs(10);
  const MessageHandle own = group->receive(mine, 0, 1), other = group->receive(theirs, 0, 2);
  std::atomic<bool> waits{false};
  std::thread beside([&] {
    while (drives && !own->done) usleep(1000);
    waits = true;
    CHECK_THROWS(office.wait(other), Error, "was interrupted during recv of 10 bytes");
  });
  while (!drives && !waits) usleep(1000);
  if (!drives) usleep(100'000);  // until it moves the messages
  t_interrupted = true;
  CHECK_THROWS(office.wait(own), Interrupted, "");
  t_interrupted = false;
  CHECK(own->done);
  beside.join();
  CHECK_THROWS(group->send(mine, 0, 1), Error, "was interrupted");
}

int threads() { return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {})); }

/// What a message's end calls may hold the last reference to its group, on the group's own thread.
void last_reference() {
  const int before = threads();
  auto group = alone();
  Data data(10);
  const MessageHandle never = group->receive(data, 0, 1, 0.01);
  group->post_office().on_done(never, [group] {});
  group.reset();
  const auto began = Clock::now();
  while (threads() > before && Clock::now() - began < 30s) usleep(1000);
  CHECK(never->done && threads() == before);
}

void wrong_calls() {
  const auto group = alone();
  Data data(10);
  CHECK_THROWS(group->send(data, 0, -2), UsageError, "tag=-2: expected 0 or more");
  CHECK_THROWS(group->receive_now(data, 0, -3), UsageError, "tag=-3: expected 0 or more");
  group->close();
  CHECK_THROWS(group->monitored_barrier(false), UsageError, "is closed on this rank");
}

/// The other rank goes while this one waits for its message.
void departure(Group& group) {
  Data data(10);
  if (group.rank() == 1) {
    group.post_office().wait(group.receive(data, 0, 1));
    return;
  }
  group.post_office().wait(group.send(data, 1, 1));  // was taken before it went: no failure
  CHECK_THROWS(group.post_office().wait(group.receive(data, 1, 2)), PeerDied, "rank 1");
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

/// What nobody asks for goes ahead to another node as long as no more than 1 MiB of it lies there; the rest waits, and
/// all of it arrives. Once it has, as much may go ahead again.
void ahead(Group& group) {
  constexpr std::size_t kBytes = 1000, kAhead = (1 << 20) / (sizeof(MessageHead) + kBytes), kMessages = 3 * kAhead;
  const Data shorts = content(0, 1, 1, kBytes);
  for (int round = 0; round < 2; ++round) {
    if (group.rank() == 1) {
      group.barrier();  // by now all are on their way
      for (std::size_t i = 0; i < kMessages; ++i) {
        Data in(kBytes);
        group.receive_now(in, 0, 1);
        CHECK(in == shorts);
      }
      group.send_now({}, 0, 2);
      continue;
    }
    std::vector<MessageHandle> sent;
    for (std::size_t i = 0; i < kMessages; ++i) sent.push_back(group.send(shorts, 1, 1));
    CHECK(std::all_of(sent.begin(), sent.begin() + kAhead, [](const MessageHandle& m) { return m->done.load(); }));
    CHECK(std::none_of(sent.begin() + kAhead, sent.end(), [](const MessageHandle& m) { return m->done.load(); }));
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

/// The sender ends before its message was copied.
void dead_sender(Group& group) {
  Data data(100000);
  if (group.rank() == 1) {
    group.send(data, 0, 1);
    std::_Exit(0);
  }
  usleep(200'000);
  CHECK_THROWS(group.receive_now(data, 1, 1), PeerDied, "rank 1");
  CHECK_THROWS(group.barrier(), PeerDied, "rank 1");
}

/// The sender's memory goes before its message was copied: its program is wrong, and both sides hear of it.
void vanished_memory(Group& group) {
  constexpr std::size_t kBytes = 128 << 10;  // what is much longer comes through the ring
  if (group.rank() == 1) {
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const MessageHandle sent = group.send({static_cast<std::byte*>(memory), kBytes}, 0, 1);
    munmap(static_cast<std::byte*>(memory) + kBytes / 2, kBytes / 2);
    group.barrier();
    CHECK_THROWS(group.post_office().wait(sent), Error, "out of the memory of rank 1");
    return;
  }
  Data data(kBytes);
  group.barrier();
  CHECK_THROWS(group.receive_now(data, 1, 1), Error, "out of the memory of rank 1");
}

/// Ranks whose memory nobody may read, as where the system forbids it.
bool run_closed_ranks(int size, const Body& body) {
  return fork_ranks(1, [&](int) {
    if (geteuid() == 0) CHECK(setuid(65534) == 0);  // root may read everything
    CHECK(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0);
    const bool good = run_ranks(size, [&](Group& group) {
      body(group);
      std::_Exit(0);  // the sanitizer's leak check wants to read its own memory
    });
    std::_Exit(good ? 0 : 1);
  });
}

void refused(Group& group) {
  CHECK(!group.why_no_single_copy().empty());
  any_order(group);
  long_both_ways(group);
}

void everything(Group& group) {
  at_once(group);
  any_order(group);
  any_source(group);
  to_oneself(group);
  if (group.size() > 1) too_late(group);
  group.barrier();
}

int main() {
  set_setting("ACCDP_EAGER_BYTES", "1k");
  set_setting("ACCDP_RING_BYTES", "8k");
  for (const char* cma : {"off", "auto"}) {
    set_setting("ACCDP_CMA", cma);
    for (int size : {1, 2, 3, 4}) CHECK(run_ranks(size, everything));
    CHECK(run_ranks(2, long_both_ways));
    CHECK(run_ranks(2, dead_sender));
  }
  CHECK(run_closed_ranks(2, refused));
  if (why_no_single_copy().empty()) {
    CHECK(run_ranks(2, vanished_memory));
    set_setting("ACCDP_CMA", "on");
    CHECK(run_ranks(2, [](Group& group) {
      CHECK(group.why_no_single_copy().empty());
      group.barrier();  // the other one may still be looking
    }));
    std::fprintf(stderr, "expected: ranks that cannot do what ACCDP_CMA=on asks for\n");
    CHECK(!run_closed_ranks(2, [](Group&) {}));
    set_setting("ACCDP_CMA", "auto");
  }
  for (const std::vector<int>& nodes : {std::vector{0, 1}, {0, 0, 1, 1}, {0, 1, 0}, {0, 1, 2}})
    run_nodes(nodes, everything);
  run_nodes({0, 1}, ahead);
  run_nodes({0, 1}, long_both_ways);
  CHECK(run_ranks(2, callbacks));
  run_nodes({0, 1}, callbacks);
  for (std::size_t bytes : {10, 5000}) {
    CHECK(run_ranks(2, [&](Group& group) { wrong_size(group, bytes); }));
    run_nodes({0, 1}, [&](Group& group) { wrong_size(group, bytes); });
  }
  wrong_calls();
  last_reference();
  set_interrupt_check([] {
    if (t_interrupted) throw Interrupted();
  });
  for (bool drives : {true, false}) interrupted(drives);
  set_interrupt_check(nullptr);
  CHECK(run_ranks(2, departure));
  CHECK(run_ranks(2, given_up));
  run_nodes({0, 1}, given_up);
}
