// Messages that do not come to their end: too late, of another size, interrupted, from ranks that are gone.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include "messages.hpp"
#include "node/peer_memory.hpp"
#include "node/process.hpp"

using namespace accdp;
using namespace std::chrono_literals;

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
void given_up(Group& group, std::atomic<bool>& gave_up) {
  const Data stale = content(0, 1, 1, 100000);
  if (group.rank() == 0) {
    CHECK_THROWS(group.post_office().wait(group.send(stale, 1, 1, 0.1)), PeerTimeout, "send of 100000 bytes, tag 1");
    CHECK_THROWS(group.send(stale, 1, 1), PeerTimeout, "send of 100000 bytes, tag 1");
    gave_up = true;
    return;
  }
  while (!gave_up) usleep(1000);
  Data late(100000);
  CHECK_THROWS(group.post_office().wait(group.receive(late, 0, 1, 1)), PeerTimeout, "of 100000 bytes, tag 1");
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

/// A rank alone; shared as the bindings share groups.
std::shared_ptr<Group> alone() {
  const std::vector<Peer> peers{{"host", getpid(), 0, 0}};
  return {new Group("test", 0, peers, -1, 30, nullptr), Group::End()};
}

/// A message that is longer than its receive: nothing is written, neither there nor behind it, whether the receive was
/// there before the message, came after it, or takes it on the spot.
void too_long(Group& group, std::size_t bytes, int how) {
  enum { kBefore, kAfter, kAtOnce };
  if (group.rank() == 0) {
    const Data data = content(0, 1, 1, bytes);
    try {
      if (how == kBefore) group.barrier();  // the receive is there
      const MessageHandle sent = group.send(data, 1, 4);
      if (how == kAfter) group.send_now({}, 1, 5);
      if (how != kBefore) group.barrier();  // the message is on its way
      group.post_office().wait(sent);
    } catch (const MismatchError&) {
    }
    CHECK_THROWS(group.barrier(), MismatchError, "which receives 8");
    return;
  }
  Data data(bytes + 8, std::byte{99});
  const Data before = data;
  const Bytes place = Bytes(data).first(8);
  try {
    if (how == kBefore) {
      const MessageHandle message = group.receive(place, 0, 4);
      group.barrier();
      CHECK_THROWS(group.post_office().wait(message), MismatchError, "which receives 8");
    } else {
      if (how == kAfter) group.receive_now({}, 0, 5);  // by which the other one has come as well
      group.barrier();
      if (how == kAtOnce) {
        CHECK_THROWS(group.receive_now(place, 0, 4), MismatchError, "which receives 8");
      } else {
        CHECK_THROWS(group.post_office().wait(group.receive(place, 0, 4)), MismatchError, "which receives 8");
      }
    }
  } catch (const MismatchError&) {  // the barrier may hear of it
  }
  CHECK(data == before);
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
  CHECK_THROWS(group->send(data, 0, -2), UsageError, "send: tag=-2: expected 0 or more");
  CHECK_THROWS(group->receive_now(data, 0, -3), UsageError, "recv: tag=-3: expected 0 or more");
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

/// The sender ends before its message was copied.
void dead_sender(Group& group, std::atomic<int>& sender) {
  Data data(100000);
  if (group.rank() == 1) {
    group.send(data, 0, 1);
    sender = getpid();
    std::_Exit(0);
  }
  while (!sender || process_lives(sender, 0)) usleep(1000);
  CHECK_THROWS(group.receive_now(data, 1, 1), PeerDied, "rank 1");
  CHECK_THROWS(group.barrier(), PeerDied, "rank 1");
}

/// The sender's memory goes before its message was copied: its program is wrong, and both sides hear of it.
void vanished_memory(Group& group) {
  constexpr std::size_t kBytes = 128 << 10;
  if (group.rank() == 1) {
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const MessageHandle sent = group.send({static_cast<std::byte*>(memory), kBytes}, 0, 1);
    munmap(static_cast<std::byte*>(memory) + kBytes / 2, kBytes / 2);
    group.barrier();
    while (!sent->done) usleep(1000);  // who waits for it instead may have to copy it himself
    CHECK_THROWS(group.post_office().wait(sent), Error, "out of the memory of rank 1");
    return;
  }
  Data data(kBytes);
  group.barrier();
  CHECK_THROWS(group.receive_now(data, 1, 1), Error, "out of the memory of rank 1");
}

/// What two ranks know of the one that is stopped.
struct Middle {
  std::atomic<pid_t> sender;
  std::atomic<bool> goes_on;
};

/// A message of which some has come fails the group when its receive is too late: the rest would be written where it
/// was to go.
void late_in_the_middle(Group& group, Middle& middle) {
  Data data(64 << 20);
  if (group.rank() == 1) {
    const MessageHandle sent = group.send(data, 0, 1);  // as much of it as there is room for
    middle.sender = getpid();
    CHECK(raise(SIGSTOP) == 0);
    middle.goes_on = true;
    CHECK_THROWS(group.post_office().wait(sent), PeerTimeout, "recv of");
    return;
  }
  const MessageHandle message = group.receive(data, 1, 1);
  while (!middle.sender) usleep(100);
  CHECK(kill(middle.sender, SIGSTOP) == 0);
  std::string said;
  bool has_failed = false;
  try {
    group.post_office().wait(message, 0.1);
  } catch (const PeerTimeout& error) {
    said = error.what();
  }
  try {
    group.start_receive(Bytes(data).first(1), 1, 2);
  } catch (const PeerTimeout&) {
    has_failed = true;
  }
  // It may only now come to stop itself.
  for (int i = 0; !middle.goes_on && i < 3000; ++i, usleep(10'000)) kill(middle.sender, SIGCONT);
  CHECK(said.find("Timed out after 0.1 s") != std::string::npos && has_failed);
}

/// A sender gives its message up while the receiver copies it out of its memory, and uses that for something else: what
/// came is not taken for the message.
void given_up_under_way(Group& group, std::atomic<bool>& is_over) {
  Data data(48 << 20, std::byte(1 - group.rank()));
  group.barrier();
  if (group.rank() == 0) {
    const MessageHandle sent = group.send(data, 1, 1, 0.004);
    while (!sent->done) usleep(100);  // who waits for it may have to copy it himself
    if (sent->error) std::memset(data.data(), 77, data.size());
    while (!is_over) usleep(100);
    return;
  }
  const struct Over {
    std::atomic<bool>& it;
    ~Over() { it = true; }
  } over{is_over};
  try {
    group.receive_now(data, 0, 1);
  } catch (const PeerTimeout&) {
    return;
  }
  CHECK(std::ranges::count(data, std::byte{1}) == static_cast<long>(data.size()));
}

int main() {
  make_limits_small();
  for (const char* cma : {"off", "auto"}) {
    set_setting("ACCDP_CMA", cma);
    for (int size : {2, 3, 4}) CHECK(run_ranks(size, too_late));
    Shared<std::atomic<int>> sender;
    CHECK(run_ranks(2, [&](Group& group) { dead_sender(group, *sender); }));
    if (cma[1] != 'f') continue;
    Shared<Middle> middle;
    CHECK(run_ranks(2, [&](Group& group) { late_in_the_middle(group, *middle); }));
  }
  if (why_no_single_copy().empty()) {
    for (int turn = 0; turn < 10; ++turn) {
      Shared<std::atomic<bool>> is_over;
      CHECK(run_ranks(2, [&](Group& group) { given_up_under_way(group, *is_over); }));
    }
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
    run_nodes(nodes, too_late);
  for (std::size_t bytes : {10, 5000}) {
    CHECK(run_ranks(2, [&](Group& group) { wrong_size(group, bytes); }));
    run_nodes({0, 1}, [&](Group& group) { wrong_size(group, bytes); });
  }
  for (std::size_t bytes : {10, 900, 5000, 100000})
    for (int how : {0, 1, 2}) {
      CHECK(run_ranks(2, [&](Group& group) { too_long(group, bytes, how); }));
      run_nodes({0, 1}, [&](Group& group) { too_long(group, bytes, how); });
    }
  wrong_calls();
  last_reference();
  set_interrupt_check([] {
    if (t_interrupted) throw Interrupted();
  });
  for (bool drives : {true, false}) interrupted(drives);
  set_interrupt_check(nullptr);
  CHECK(run_ranks(2, departure));
  Shared<std::atomic<bool>> gave_up;
  CHECK(run_ranks(2, [&](Group& group) { given_up(group, *gave_up); }));
  *gave_up = false;
  run_nodes({0, 1}, [&](Group& group) { given_up(group, *gave_up); });
}
