// The board and the steps between processes that share one memfd: hand-over, sleeping and waking, failure, death.
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <random>

#include "base/settings.hpp"
#include "node/process.hpp"
#include "node/steps.hpp"
#include "ranks.hpp"

using namespace accdp;
using namespace std::chrono_literals;

const Patience kSleepAtOnce{Habit(0ns), Habit(0ns)}, kYieldFirst{Habit(0ns), Habit(200us)},
    kUsual{Habit(20us), Habit(200us)}, kCrowded{Habit(0ns), Habit(200us), Habit(3us), true};

/// Throws what the board says, or after a while.
class Guard : public Watch {
 public:
  explicit Guard(const Board& board, double seconds = 60) : board_(board), deadline_(seconds) {}
  bool has_failed() override { return board_.has_failed(); }
  void look_around(bool had_failed) override {
    if (had_failed) throw_failure(board_.failure().first, board_.failure().second);
    if (deadline_.passed()) throw PeerTimeout("the test waited too long");
  }

 private:
  const Board& board_;
  Deadline deadline_;
};

std::uint32_t pattern(int rank, std::uint64_t step, std::size_t i) {
  return static_cast<std::uint32_t>(rank * 1000003u + step * 7919u + i);
}

/// Every rank writes in most steps and reads whatever others wrote, at its own pace.
void hand_over(int size, Patience patience, std::uint64_t steps_to_do) {
  Segment segment(size);
  CHECK(fork_ranks(size, [&](int rank) {
    Board board(segment.fd(), size, rank);
    Guard guard(board);
    std::uint64_t counter = 0;
    std::mt19937 pace(rank);
    auto writes = [](int who, std::uint64_t step) { return (step + who) % 4 != 0; };
    // Some stay in their place in the slot, some wander, some fill it.
    auto words = [&](int who, std::uint64_t step) {
      const std::size_t bytes[] = {64, 2100, 5000, 9000, board.slot_bytes()};
      return bytes[(step * 5 + step / 3 + who) % std::size(bytes)] / sizeof(std::uint32_t);
    };
    for (std::uint64_t step = 1; step <= steps_to_do; ++step) {
      Steps steps(board, counter, patience, guard);  // the count lives on in `counter`
      if (writes(rank, step)) {
        const std::size_t end = words(rank, step);
        auto* slot = reinterpret_cast<std::uint32_t*>(steps.open(end * sizeof(std::uint32_t)));
        for (std::size_t i = 0; i < end; i += 7) slot[i] = pattern(rank, step, i);
        slot[end - 1] = pattern(rank, step, end - 1);
      } else {
        steps.open_unwritten();
      }
      steps.publish();
      if (pace() % 16 == 0) sched_yield();
      for (int other = 0; other < size; ++other) {
        if (other == rank || !writes(other, step)) continue;
        steps.await(other);
        const auto* slot = reinterpret_cast<const std::uint32_t*>(steps.slot(other));
        const std::size_t end = words(other, step);
        for (std::size_t i = 0; i < end; i += 7) CHECK(slot[i] == pattern(other, step, i));
        CHECK(slot[end - 1] == pattern(other, step, end - 1));
      }
      if (step % 7 == 0) steps.await_all();
    }
    CHECK(counter == steps_to_do);
    for (int other = 0; other < size; ++other) CHECK((board.line(other).core > 0) == patience.is_crowded);
  }));
}

/// No place is taken again before nearly the whole slot was; what is next lies below. Little stays where it is.
void places_wander() {
  Board board(-1, 1, 0);
  const std::size_t bytes = 3000, taken = 3008;  // whole lines
  for (std::uint64_t half : {0, 1}) {
    std::byte* const begin = board.take_slot(half, 64);
    std::byte* before = board.take_slot(half, bytes);
    CHECK(before + taken == begin + board.slot_bytes());
    for (std::size_t i = 1; i < board.slot_bytes() / taken; ++i) {
      std::byte* const place = board.take_slot(half + 2 * i, bytes);
      CHECK(place == before - taken && place >= begin && place == board.slot(0, half));
      before = place;
    }
    CHECK(board.take_slot(half, bytes) + taken == begin + board.slot_bytes());
    for (int i = 0; i < 3; ++i) CHECK(board.take_slot(half, 64) == begin);
    CHECK(board.take_slot(half, board.slot_bytes()) == begin);
  }
}

void failure_wakes_all() {
  constexpr int kSize = 3;
  Segment segment(kSize);
  CHECK(fork_ranks(kSize, [&](int rank) {
    Board board(segment.fd(), kSize, rank);
    Guard guard(board);
    Patience patience = kSleepAtOnce;
    std::uint64_t counter = 0;
    Steps steps(board, counter, patience, guard);
    if (rank == 0) {
      usleep(200 * 1000);  // the others sleep by now
      board.fail(FailureKind::kDied, "rank 7 exited");
      board.fail(FailureKind::kTimeout, "not the first failure, so not the one that counts");
      CHECK(board.failure().first == FailureKind::kDied);
      return;
    }
    const auto began = Clock::now();
    steps.open_unwritten();
    steps.publish();
    CHECK_THROWS(steps.await(0), PeerDied, "rank 7 exited");
    CHECK(steps.waits_for(0) && !steps.waits_for(rank));
    CHECK(Clock::now() - began < 5s);
  }));
}

void failure_texts() {
  Board board(-1, 1, 0);
  CHECK(!board.has_failed());
  board.fail(FailureKind::kMismatch, std::string(5000, 'x'));  // longer than the board keeps
  CHECK(board.has_failed() && board.failure().second.size() > 100);
  CHECK_THROWS(throw_failure(FailureKind::kMismatch, "a"), MismatchError, "a");
  CHECK_THROWS(throw_failure(FailureKind::kTimeout, "b"), PeerTimeout, "b");
  CHECK_THROWS(throw_failure(FailureKind::kOther, "c"), Error, "c");
}

/// Sleeping at once in every step: a lost wake-up would cost the longest sleep each time.
void no_wake_up_is_lost() {
  const auto began = Clock::now();
  hand_over(2, kSleepAtOnce, 2000);
  CHECK(Clock::now() - began < 2000 * kLongestSleep / 4);
}

std::uint64_t start_time_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string field;
  for (int i = 0; i < 22; ++i) file >> field;  // no blank in this program's name
  return std::stoull(field);
}

void lives() {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    ::pause();
    std::_Exit(0);
  }
  const std::uint64_t started = start_time_of(child);
  CHECK(process_lives(child, started) && process_lives(child, 0));
  CHECK(!process_lives(child, started + 1));  // another process that got the same pid
  CHECK(kill(child, SIGKILL) == 0);
  for (int i = 0; i < 1000 && process_lives(child, started); ++i) usleep(10 * 1000);
  CHECK(!process_lives(child, started) && !process_lives(child, 0));  // a zombie lives no more
  CHECK(waitpid(child, nullptr, 0) == child);
  CHECK(!process_lives(child, started));
}

int main() {
  set_setting("ACCDP_FLAT_BYTES", "1k");
  set_setting("ACCDP_CHUNK_BYTES", "16k");
  for (int size : {2, 3, 4}) hand_over(size, kUsual, 3000);
  hand_over(3, kYieldFirst, 2000);
  hand_over(4, kCrowded, 2000);
  places_wander();
  no_wake_up_is_lost();
  failure_wakes_all();
  failure_texts();
  lives();
}
