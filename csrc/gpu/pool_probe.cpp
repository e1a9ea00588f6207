// Whether events of other processes hold a rank's streams back, and no longer than they should. Rounds on the same
// events; in each every rank writes a number of its own and of the round into its slot and records its event, and
// another stream of each rank waits for the others' events and reads their numbers.
//   First: nobody is held back. What an event may remember of it when it is recorded anew is that it was done.
//   Then, for two ranks of each GPU, so that every rank sees it of every GPU: the host holds back that rank's stream,
//   in front of what it writes. The others must still wait when everybody has looked. Then the rank records its event
//   anew, behind another hold; the first hold ends, and the others must find the new number, because what they wait for
//   is the event as it was when they were told to wait.
// The event is all that can keep the others waiting: nothing of their own is, with which the stream that reads may
// share a queue of the device. A driver under which events of other processes cannot be used says so, or lets the reads
// through, or never. The steps between ranks are taken whatever fails, or the ranks would lose step. Takes 100 ms.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/keep.hpp"
#include "device/cuda_reduce.hpp"
#include "gpu/pool.hpp"

namespace accdp {
namespace {

constexpr std::size_t kProbeBytes = 4 << 10;
constexpr int kLooks = 50, kLeastLooks = 5;  // of all rounds together, of each
constexpr std::chrono::milliseconds kRest{2};
constexpr std::chrono::seconds kMostLate{3};  // of what nothing should hold back; later than a death counts
constexpr std::chrono::seconds kNever{6};     // of what may be behind other work
constexpr int kMostRanks = 32;

/// What a rank of the node writes in a round: not what any rank does in the same, nor itself in another.
std::byte number_of(int rank, int round) { return static_cast<std::byte>(1 + (rank + kMostRanks * round) % 255); }

constexpr std::size_t kProbeWords = kProbeBytes / sizeof(std::uint64_t);

/// Of which none is another's, of this number or of another one.
std::vector<std::uint64_t> words_of(std::uint64_t number) {
  std::vector<std::uint64_t> words(kProbeWords);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = number * 0x9e3779b97f4a7c15 + i;
  return words;
}

/// Holds a stream back from its closing to its opening, which comes at the latest with the end of this. By a word that
/// the stream waits for: a function of the host in its place would keep drivers from more than this stream.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) : stream_(stream) {}
  Gate(const Gate&) = delete;
  ~Gate() {
    open();
    drain(stream_);
  }
  /// word: of page-locked memory, which stays where the device may never have done with it.
  void prepare(std::byte* word) { word_ = reinterpret_cast<std::uint32_t*>(word); }
  void close() {
    word().store(kClosed);
    // In the end it opens by itself: the driver may have the thread that would open it wait for the stream.
    opener_ = std::jthread([this](const std::stop_token& asked) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, asked, kMostClosed, [] { return false; });
      word().store(kOpen);
    });
    wait_for_value(stream_, word_, kOpen);
  }
  void open() { opener_ = {}; }

 private:
  static constexpr std::uint32_t kClosed = 0, kOpen = 1;
  static constexpr std::chrono::seconds kMostClosed{5};
  static_assert(kMostClosed > kMostLate && kMostClosed < kNever);
  std::atomic_ref<std::uint32_t> word() const { return std::atomic_ref(*word_); }

  cudaStream_t stream_;
  std::uint32_t* word_ = nullptr;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread opener_;  // last: it uses the others
};

}  // namespace

/// What a rank reads with. It may wait for a rank that dies, and then for ever.
struct Pool::Probe {
  PinnedBuffer sent, seen, words;
  Stream reader;  // last: it goes before its memory
};

/// Into the beginning of the own slots, for reads_mark() of others.
void Pool::mark(std::uint64_t number) {
  const auto words = words_of(number);
  copy_async(base(me_), words.data(), kProbeBytes, stream());
  synchronize(stream());
}

/// Whether copies and kernels read of a rank's memory what it wrote there. Between GPUs behind a switch or an IOMMU
/// that leads their reads elsewhere memory can be opened like any other.
bool Pool::reads_mark(int rank, std::uint64_t number) {
  std::vector<std::uint64_t> by_copy(kProbeWords), by_kernel(kProbeWords);
  std::byte* const read = base(me_) + slot_bytes_;  // into the other slot, which nobody looks at
  const void* const theirs = base(rank);
  load_reductions();
  reduce_async(read, nullptr, {&theirs, 1}, kProbeWords, {Datatype::kI64, ReduceOp::kSum}, stream());
  copy_async(by_kernel.data(), read, kProbeBytes, stream());
  copy_async(by_copy.data(), theirs, kProbeBytes, stream());
  synchronize(stream());
  return by_copy == words_of(number) && by_kernel == by_copy;
}

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

/// Which ranks of a group are held back, one after the other; ranks of the node know of all groups.
std::vector<int> Pool::held_in_probe(int group) const {
  std::vector<int> held;
  if (groups_.members(group).size() < 2) return held;
  for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
    int of_this = 0;
    for (int rank : gpus_.members(gpu))
      if (groups_.of(rank) == group && of_this++ < 2) held.push_back(rank);
  }
  return held;
}

std::string Pool::probe_events(Context& c) {
  const std::vector<int>& mates = groups_.mates();
  const std::size_t bytes = std::min(slot_bytes_, kProbeBytes);
  auto probe = std::make_unique<Probe>();
  Gate gate(stream()), second_gate(stream());
  const std::vector<int> held_ranks = held_in_probe(groups_.mine());
  std::size_t holds = 0;  // of the group with most, since all ranks of the node take the same steps
  for (int group = 0; group < groups_.count(); ++group) holds = std::max(holds, held_in_probe(group).size());
  const int looks = std::max(kLeastLooks, kLooks / static_cast<int>(std::max<std::size_t>(holds, 1)));
  std::string trouble;
  const auto attempt = [&](auto work) {
    try {
      if (trouble.empty() && mates.size() > 1) work();
    } catch (const std::exception& error) {  // of the driver, or no thread for a gate: events are then not used
      trouble = error.what();
    }
  };
  const auto name = [&](int rank) { return "rank " + std::to_string(c.topology().neighbours()[rank]); };
  const auto has_read = [&] { return !probe->reader || is_done(probe->reader.get()); };
  const auto has_read_within = [&](std::chrono::seconds time) {
    const auto limit = Clock::now() + time;
    const bool all_live = outlast(wait_for_work_of(processes_), [&] { return has_read() || Clock::now() > limit; });
    if (!all_live && trouble.empty()) trouble = "a rank is gone";
    return has_read();
  };
  const auto write = [&](int round, bool is_held) {
    if (round == 0) {
      probe->words = PinnedBuffer(2 * sizeof(std::uint32_t));
      gate.prepare(probe->words.data());
      second_gate.prepare(probe->words.data() + sizeof(std::uint32_t));
      probe->reader = make_stream(true);
      probe->sent = PinnedBuffer(bytes);
      probe->seen = PinnedBuffer(bytes * c.local_size());
    }
    std::memset(probe->sent.data(), std::to_integer<int>(number_of(me_, round)), bytes);
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
    for (int look = 0; held >= 0 && held != me_ && look < looks; ++look) {
      if (!is_busy(probe->reader.get())) {
        trouble = "an event of " + name(held) + " did not hold a stream back";
        return;
      }
      std::this_thread::sleep_for(kRest);
    }
  };
  const auto go_on = [&](int held) {
    if (held == me_) {
      second_gate.close();
      record(exports_.published[half(step_)], stream());
    }
    gate.open();
    if (held >= 0 && !has_read_within(kMostLate) && trouble.empty())
      trouble = "an event of " + name(held) + ", recorded anew, held back what had waited for it before";
  };
  const auto compare = [&](int round) {
    if (!has_read_within(kNever) && trouble.empty()) trouble = "waits for events of other processes take too long";
    if (!trouble.empty()) return;
    synchronize(probe->reader.get());
    synchronize(stream());
    for (int rank : mates) {
      const std::byte *const begin = probe->seen.data() + rank * bytes, *const end = begin + bytes;
      if (rank != me_ && std::count(begin, end, number_of(rank, round)) != end - begin)
        trouble = "an event of " + name(rank) + " came before what it stands for";
    }
  };
  // Afterwards nothing may wait any more, however this ends: freeing what is used waits for it.
  const auto settle_probe = [&](bool has_failed) {
    gate.open();
    second_gate.open();
    if (has_failed ? outlast(wait_for_work_of(processes_, true), has_read) : has_read_within(kNever)) return;
    is_stuck_ = true;
    keep_for_ever(std::move(probe));
  };
  ++step_;  // one half of the slot, and its event, for all rounds
  try {
    for (int round = 0; round <= static_cast<int>(holds) && trouble.empty(); ++round) {
      const bool holds_one = round > 0 && round <= static_cast<int>(held_ranks.size());
      const int held = holds_one ? held_ranks[round - 1] : -1;
      attempt([&] { write(round, held == me_); });
      trouble = first_trouble(c, trouble);  // nobody waits for an event before it is recorded
      if (!trouble.empty()) break;
      attempt([&] { read(held); });
      c.meet();
      attempt([&] { go_on(held); });
      gate.open();
      c.meet();
      second_gate.open();
      attempt([&] { compare(round); });
      trouble = first_trouble(c, trouble);  // nor writes anew before all have read
    }
  } catch (...) {
    settle_probe(true);
    throw;
  }
  settle_probe(false);
  // A stream that waits for ever is one for which the freeing of any memory waits.
  const std::string stuck = first_trouble(c, is_stuck_ ? "waits for events of other processes do not end" : "");
  if (!stuck.empty()) throw CudaError(stuck + ": expected a driver under which they do, or ACCDP_GPU_PATH=by_host");
  return trouble;
}

}  // namespace accdp
