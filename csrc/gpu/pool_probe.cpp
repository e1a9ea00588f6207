// Whether events of other processes hold a rank's streams back. Three rounds on the same events. In each every rank
// writes a number of its own and of the round into its slot and records its event; another stream of each rank waits
// for the others' events and reads their numbers.
//   1. Nobody is held back. What an event may remember of it when it is recorded anew is that it was done.
//   2. The host holds back the stream of the group's first rank, in front of what it writes. The others must still wait
//      when everybody has looked, and find the new number once it goes on.
//   3. The same with the second rank, so that the first has seen it, too.
// In 2 and 3 that event is all that can keep the others waiting: nothing of their own is, with which the stream that
// reads may share a queue of the device. A driver under which events of other processes cannot be used says so, or lets
// the reads through. The steps between ranks are taken whatever fails, or the ranks would lose step. Takes 100 ms.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/keep.hpp"
#include "gpu/pool.hpp"

namespace accdp {
namespace {

constexpr std::size_t kProbeBytes = 4 << 10;
constexpr int kProbeRounds = 3, kProbeLooks = 25;
constexpr std::chrono::milliseconds kProbeRest{2};

/// What a rank of the node writes in a round: another number for each of up to 84 ranks.
int number_of(int rank, int round) { return 1 + kProbeRounds * rank + round; }

/// Holds a stream back from its closing to its opening, which comes at the latest with the end of this. By itself it
/// opens, too: the driver may have the thread that would open it wait for the stream.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) : stream_(stream) {}
  Gate(const Gate&) = delete;
  ~Gate() {
    open();
    drain(stream_);
  }
  void close() {
    is_open_ = false;
    call_in_stream(stream_, [](void* gate) { static_cast<Gate*>(gate)->pass(); }, this);
  }
  void open() {
    {
      std::lock_guard lock(mutex_);
      is_open_ = true;
    }
    opened_.notify_all();
  }

 private:
  void pass() {
    std::unique_lock lock(mutex_);
    opened_.wait_for(lock, kMostClosed, [&] { return is_open_; });
  }
  static constexpr std::chrono::seconds kMostClosed{5};

  cudaStream_t stream_;
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = true;
};

}  // namespace

/// What a rank reads with. It may wait for a rank that dies, and then for ever.
struct Pool::Probe {
  PinnedBuffer sent, seen;
  Stream reader;  // last: it goes before its memory
};

/// What the first rank of the node that has trouble says of it; empty where none has.
std::string Pool::first_trouble(Context& c, const std::string& mine) {
  constexpr std::size_t kMostSaid = 1000;  // of a slot's 4096 bytes
  std::byte* const slot = c.open(kMostSaid + 1);
  const std::size_t bytes = std::min(mine.size(), kMostSaid);
  std::memcpy(slot, mine.data(), bytes);
  slot[bytes] = std::byte{0};
  c.publish();
  c.await_all();
  for (int rank = 0; rank < c.local_size(); ++rank) {
    const auto* said = reinterpret_cast<const char*>(c.slot(rank));
    if (*said) return "rank " + std::to_string(c.topology().neighbours()[rank]) + ": " + said;
  }
  return {};
}

std::string Pool::probe_events(Context& c) {
  const std::vector<int>& mates = groups_.mates();
  const std::size_t bytes = std::min(slot_bytes_, kProbeBytes);
  auto probe = std::make_unique<Probe>();
  Gate gate(stream());
  std::string trouble;
  const auto attempt = [&](auto work) {
    try {
      if (trouble.empty() && mates.size() > 1) work();
    } catch (const CudaError& error) {
      trouble = error.what();
    }
  };
  const auto name = [&](int rank) { return "rank " + std::to_string(c.topology().neighbours()[rank]); };
  const auto has_read = [&] { return !probe->reader || is_done(probe->reader.get()); };
  const auto write = [&](int round, bool is_held) {
    if (round == 0) {
      probe->reader = make_stream();
      probe->sent = PinnedBuffer(bytes);
      probe->seen = PinnedBuffer(bytes * c.local_size());
    }
    std::memset(probe->sent.data(), number_of(me_, round), bytes);
    std::memset(probe->seen.data(), 0, bytes * c.local_size());
    if (is_held) gate.close();
    copy_async(base(me_) + half(step_) * slot_bytes_, probe->sent.data(), bytes, stream());
    record(exports_.published[half(step_)], stream());
  };
  const auto read = [&](int held) {
    for (int rank : mates) {
      if (rank == me_) continue;
      wait_for(probe->reader.get(), published_[half(step_)][rank]);
      copy_async(probe->seen.data() + rank * bytes, slot(rank), bytes, probe->reader.get());
    }
    for (int look = 0; held >= 0 && held != me_ && look < kProbeLooks; ++look) {
      if (!is_busy(probe->reader.get())) {
        trouble = "an event of " + name(held) + " did not hold a stream back";
        return;
      }
      std::this_thread::sleep_for(kProbeRest);
    }
  };
  const auto compare = [&](int round) {
    if (!outlast(wait_for_work_of(processes_), has_read)) {
      trouble = "a rank is gone";
      return;
    }
    synchronize(probe->reader.get());
    synchronize(stream());
    for (int rank : mates) {
      const std::byte *const begin = probe->seen.data() + rank * bytes, *const end = begin + bytes;
      const auto wanted = static_cast<std::byte>(number_of(rank, round));
      if (rank != me_ && std::count(begin, end, wanted) != end - begin)
        trouble = "an event of " + name(rank) + " came before what it stands for";
    }
  };
  // Afterwards nothing may wait any more, however this ends: freeing what is used waits for it.
  const auto settle_probe = [&] {
    gate.open();
    if (outlast(wait_for_work_of(processes_, true), has_read)) return;
    is_stuck_ = true;
    keep_for_ever(std::move(probe));
  };
  ++step_;  // one half of the slot, and its event, for all rounds
  try {
    for (int round = 0; round < kProbeRounds && trouble.empty(); ++round) {
      const int held = round > 0 && mates.size() > 1 ? mates[round - 1] : -1;
      attempt([&] { write(round, held == me_); });
      trouble = first_trouble(c, trouble);  // nobody waits for an event before it is recorded
      if (!trouble.empty()) break;
      attempt([&] { read(held); });
      c.meet();
      gate.open();
      attempt([&] { compare(round); });
      trouble = first_trouble(c, trouble);  // nor writes anew before all have read
    }
  } catch (...) {
    settle_probe();
    throw;
  }
  settle_probe();
  return trouble;
}

}  // namespace accdp
