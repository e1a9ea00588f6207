// Send and receive where something ends: whoever waits in vain hears so, and of a group that has failed nothing stays
// open.
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "messages.hpp"

using namespace accdp;
using namespace std::chrono_literals;

constexpr int kFlood = 1, kCount = 2, kNever = 3, kEnd = 4;

/// Receives what rank 2 sends again and again into the same places, by callbacks.
class Flooded {
 public:
  explicit Flooded(Group& group) : group_(group) {
    for (std::size_t i = 0; i < places_.size(); ++i) refill(i);
  }
  static constexpr std::size_t kPlaces = 32;
  void end() { is_over_ = true; }
  void await(std::uint64_t messages) const {
    while (came_ < messages) std::this_thread::yield();  // the background thread moves them
  }

 private:
  void refill(std::size_t i) {
    for (bool is_done = true; is_done; came_ += is_done) {
      const MessageHandle message = group_.receive(places_[i], 2, kFlood);
      is_done = message->done;
      if (!is_done) group_.post_office().on_done(message, [this, i] { again(i); });
    }
  }
  void again(std::size_t i) {
    try {
      if (!is_over_) refill(i);
    } catch (const Error&) {  // the group has failed, or is closed
    }
    ++came_;  // last: whoever awaits it may end all this
  }

  Group& group_;
  std::array<std::array<std::byte, 64>, kPlaces> places_;
  std::atomic<std::uint64_t> came_{0};
  std::atomic<bool> is_over_{false};
};

/// Now and then it pauses, or whoever receives would find the next one there and never wait.
void send_flood(Group& group, std::uint64_t& count, const std::atomic<bool>& ends) {
  std::byte data[64] = {};
  for (; !ends; ++count) {
    group.send_now(data, 0, kFlood);
    if (count % 8 == 7) std::this_thread::sleep_for(20us);
  }
}

/// Whoever waits in vain hears so in time, however much comes for other receives.
void flood(Group& group, std::atomic<bool>& has_heard) {
  std::uint64_t count = 0;
  const Bytes count_bytes = std::as_writable_bytes(std::span(&count, 1));
  std::byte data[64] = {};
  if (group.rank() == 2) {
    send_flood(group, count, has_heard);
    group.send_now(count_bytes, 0, kCount);
    group.receive_now({}, 0, kEnd);
    for (std::size_t i = 0; i < Flooded::kPlaces; ++i) group.send_now(data, 0, kFlood);
  }
  if (group.rank() == 0) {
    Flooded flooded(group);
    CHECK_THROWS(group.receive_now(data, 1, kNever, 0.3), PeerTimeout, "Timed out after 0.3 s");
    has_heard = true;
    group.receive_now(count_bytes, 2, kCount);
    flooded.await(count);
    flooded.end();
    group.send_now({}, 2, kEnd);
    flooded.await(count + Flooded::kPlaces);
  }
  group.barrier();
}

/// The same of a death.
void flood_and_death(Group& group) {
  static std::optional<Flooded> flooded;  // its places stay: receives of a failed group are over, but not its threads
  std::byte data[64] = {};
  if (group.rank() == 1) std::_Exit(0);
  const auto began = Clock::now();
  if (group.rank() == 2) {
    std::uint64_t count = 0;
    CHECK_THROWS(send_flood(group, count, false), PeerDied, "rank 1");
  } else {
    flooded.emplace(group);
    CHECK_THROWS(group.receive_now(data, 1, kNever), PeerDied, "rank 1");
  }
  CHECK(Clock::now() - began < 5s);
}

/// Nor does what is sent meanwhile hide it.
void busy_and_death(Group& group) {
  if (group.rank() == 1) std::_Exit(0);
  std::byte data[64] = {}, none[64] = {};
  const auto began = Clock::now();
  std::atomic<bool> is_over{false};
  std::thread sender([&] {
    try {
      while (!is_over) group.send_now(data, 0, kFlood), group.receive_now(none, 0, kFlood);  // to itself
    } catch (const Error&) {
    }
  });
  CHECK_THROWS(group.receive_now(data, 1, kNever), PeerDied, "rank 1");
  CHECK(Clock::now() - began < 5s);
  is_over = true;
  sender.join();
}

/// Of a group that has failed nothing stays open when the background thread is retired, and all are told before.
void retire(Group& group) {
  std::byte none[64] = {};
  if (group.rank() == 1) {
    CHECK_THROWS(group.receive_now(none, 0, kNever), Error, "had enough");
    return;
  }
  Data data(1 << 22);
  std::vector<MessageHandle> open;
  std::atomic<std::size_t> told{0};
  for (int tag : {0, 1}) open.push_back(group.send(data, 1, tag));
  open.push_back(group.receive(none, 1, 0));
  for (const MessageHandle& m : open) group.post_office().on_done(m, [&] { ++told; });
  std::this_thread::sleep_for(2ms);  // the background thread takes over
  group.abort("had enough");
  group.post_office().retire();
  CHECK(told == open.size());
  for (const MessageHandle& m : open) CHECK(m->done && m->error);
  CHECK_THROWS(group.send(data, 1, 2), Error, "had enough");
  group.post_office().retire();
}

int main() {
  make_limits_small();
  Shared<std::atomic<bool>> has_heard;
  const auto flood_all = [&](Group& group) { flood(group, *has_heard); };
  CHECK(run_ranks(3, flood_all));
  CHECK(run_ranks(3, flood_and_death));
  for (int i = 0; i < 20; ++i) CHECK(run_ranks(2, retire));
  CHECK(run_ranks(2, busy_and_death));
  for (const auto& nodes : {std::vector{0, 1, 0}, {0, 1, 2}}) {
    *has_heard = false;
    run_nodes(nodes, flood_all);
  }
}
