// Whether events of other processes hold a rank's streams back, and no longer than they should. Rounds on the same
// events; in each every rank writes a number of its own and of the round into its slot and records its event, and
// another stream of each rank waits for the others' events and reads their numbers.
//   First: nobody is held back. What an event may remember of it when it is recorded anew is that it was done.
//   Then, for two ranks of each GPU, so that every rank sees it of every GPU: the host holds back that rank's stream,
//   in front of what it writes. When everybody has looked the others must still wait, and the event not count as done.
//   Then the rank records its event anew, behind another hold; the first hold ends, and the others must find the new
//   number, because what they wait for is the event as it was when they were told to wait.
// The event is all that can keep the others waiting: nothing of their own is, with which the stream that reads may
// share a queue of the device. A driver under which events of other processes cannot be used says so, or lets the reads
// through, or never. The steps between ranks are taken whatever fails, or the ranks would lose step. Takes 100 ms.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "base/keep.hpp"
#include "device/cuda_reduce.hpp"
#include "gpu/gate.hpp"
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

static_assert(Gate::kMostClosed > kMostLate && Gate::kMostClosed < kNever);

}  // namespace

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

/// See above. One for each pool, and for all ranks of the node at once.
class Pool::EventProbe {
 public:
  EventProbe(Pool& pool, Context& context);
  /// Why events are not used; empty where they are.
  std::string run();

 private:
  /// What a rank reads with. It may wait for a rank that dies, and then for ever.
  struct Reading {
    PinnedBuffer sent, seen, words;
    Stream stream;  // last: it goes before its memory
  };

  std::vector<int> held_of(int group) const;
  template <class Step>
  void attempt(Step step);
  void take_round(int round, int held);
  void prepare();
  void write(int round, bool is_held);
  void read(int held);
  void go_on(int held);
  void compare(int round);
  void settle(bool has_failed);
  bool has_read() const { return !reading_->stream || is_done(reading_->stream.get()); }
  bool has_read_within(std::chrono::seconds time);
  std::string name(int rank) const { return "rank " + std::to_string(context_.topology().neighbours()[rank]); }
  const Event& event() const { return pool_.exports_.published[half(pool_.step_)]; }

  Pool& pool_;
  Context& context_;
  const std::vector<int>& mates_;
  const int me_;
  const std::size_t bytes_;
  std::unique_ptr<Reading> reading_ = std::make_unique<Reading>();
  Gate gate_, second_gate_;  // after what they and the streams use
  std::vector<int> held_;    // of this rank's group
  std::size_t rounds_ = 1;
  int looks_;
  std::string trouble_;
};

Pool::EventProbe::EventProbe(Pool& pool, Context& context)
    : pool_(pool),
      context_(context),
      mates_(pool.groups_.mates()),
      me_(pool.me_),
      bytes_(std::min(pool.slot_bytes_, kProbeBytes)),
      gate_(pool.stream()),
      second_gate_(pool.stream()),
      held_(held_of(pool.groups_.mine())) {
  std::size_t holds = 0;  // of the group with most, since all ranks of the node take the same steps
  for (int group = 0; group < pool.groups_.count(); ++group) holds = std::max(holds, held_of(group).size());
  rounds_ += holds;
  looks_ = std::max(kLeastLooks, kLooks / static_cast<int>(std::max<std::size_t>(holds, 1)));
}

/// Which ranks of a group are held back, one after the other; ranks of the node know of all groups.
std::vector<int> Pool::EventProbe::held_of(int group) const {
  const GpuGroups &groups = pool_.groups_, &gpus = pool_.gpus_;
  std::vector<int> held;
  if (groups.members(group).size() < 2) return held;
  for (int gpu = 0; gpu < gpus.count(); ++gpu) {
    int of_this = 0;
    for (int rank : gpus.members(gpu))
      if (groups.of(rank) == group && of_this++ < 2) held.push_back(rank);
  }
  return held;
}

/// What a rank of a group does, unless it had trouble before.
template <class Step>
void Pool::EventProbe::attempt(Step step) {
  try {
    if (trouble_.empty() && mates_.size() > 1) step();
  } catch (const std::exception& error) {  // of the driver, or no thread for a gate: events are then not used
    trouble_ = error.what();
  }
}

std::string Pool::EventProbe::run() {
  ++pool_.step_;  // one half of the slot, and its event, for all rounds
  try {
    for (std::size_t round = 0; round < rounds_ && trouble_.empty(); ++round)
      take_round(static_cast<int>(round), round > 0 && round <= held_.size() ? held_[round - 1] : -1);
  } catch (...) {
    settle(true);
    throw;
  }
  settle(false);
  // A stream that waits for ever is one for which the freeing of any memory waits.
  const std::string stuck =
      first_trouble(context_, pool_.is_stuck_ ? "waits for events of other processes do not end" : "");
  if (!stuck.empty()) throw CudaError(stuck + ": expected a driver under which they do, or ACCDP_GPU_PATH=by_host");
  return trouble_;
}

void Pool::EventProbe::take_round(int round, int held) {
  attempt([&] {
    if (round == 0) prepare();
    write(round, held == me_);
  });
  trouble_ = first_trouble(context_, trouble_);  // nobody waits for an event before it is recorded
  if (!trouble_.empty()) return;
  attempt([&] { read(held); });
  context_.meet();
  attempt([&] { go_on(held); });
  gate_.open();
  context_.meet();
  second_gate_.open();
  attempt([&] { compare(round); });
  trouble_ = first_trouble(context_, trouble_);  // nor writes anew before all have read
}

void Pool::EventProbe::prepare() {
  reading_->words = PinnedBuffer(2 * sizeof(std::uint32_t));
  gate_.prepare(reading_->words.data());
  second_gate_.prepare(reading_->words.data() + sizeof(std::uint32_t));
  reading_->stream = make_stream(true);
  reading_->sent = PinnedBuffer(bytes_);
  reading_->seen = PinnedBuffer(bytes_ * context_.local_size());
}

void Pool::EventProbe::write(int round, bool is_held) {
  std::memset(reading_->sent.data(), std::to_integer<int>(number_of(me_, round)), bytes_);
  std::memset(reading_->seen.data(), 0, bytes_ * context_.local_size());
  if (is_held) gate_.close();
  const auto began = Clock::now();
  copy_async(pool_.base(me_) + half(pool_.step_) * pool_.slot_bytes_, reading_->sent.data(), bytes_, pool_.stream());
  record(event(), pool_.stream());
  // Else others would say that the event did not hold them back.
  if (is_held && Clock::now() - began > Gate::kMostClosed / 2)
    trouble_ = "the driver keeps who hands over work behind cuStreamWaitValue32";
}

void Pool::EventProbe::read(int held) {
  for (int rank : mates_) {
    if (rank == me_) continue;
    wait_for(reading_->stream.get(), pool_.published_[half(pool_.step_)][rank]);
    copy_async(reading_->seen.data() + rank * bytes_, pool_.slot(rank), bytes_, reading_->stream.get());
  }
  for (int look = 0; held >= 0 && held != me_ && look < looks_; ++look) {
    if (!is_busy(reading_->stream.get())) {
      trouble_ = "an event of " + name(held) + " did not hold a stream back";
      return;
    }
    if (is_done(pool_.published_[half(pool_.step_)][held])) {  // readers.cpp goes by that, too
      trouble_ = "an event of " + name(held) + " counted as done before it was";
      return;
    }
    std::this_thread::sleep_for(kRest);
  }
}

/// The first hold ends, and what waited for it goes on, whatever holds the event as it was recorded since.
void Pool::EventProbe::go_on(int held) {
  if (held == me_) {
    second_gate_.close();
    record(event(), pool_.stream());
  }
  gate_.open();
  if (held >= 0 && !has_read_within(kMostLate) && trouble_.empty())
    trouble_ = "an event of " + name(held) + ", recorded anew, held back what had waited for it before";
}

void Pool::EventProbe::compare(int round) {
  if (!has_read_within(kNever) && trouble_.empty()) trouble_ = "waits for events of other processes take too long";
  if (!trouble_.empty()) return;
  synchronize(reading_->stream.get());
  synchronize(pool_.stream());
  for (int rank : mates_) {
    const std::byte *const begin = reading_->seen.data() + rank * bytes_, *const end = begin + bytes_;
    if (rank != me_ && std::count(begin, end, number_of(rank, round)) != end - begin)
      trouble_ = "an event of " + name(rank) + " came before what it stands for";
  }
}

bool Pool::EventProbe::has_read_within(std::chrono::seconds time) {
  const auto limit = Clock::now() + time;
  const bool all_live = outlast(wait_for_work_of(pool_.processes_), [&] { return has_read() || Clock::now() > limit; });
  if (!all_live && trouble_.empty()) trouble_ = "a rank is gone";
  return has_read();
}

/// Afterwards nothing may wait any more, however the probe ends: freeing what is used waits for it.
void Pool::EventProbe::settle(bool has_failed) {
  gate_.open();
  second_gate_.open();
  if (has_failed ? outlast(wait_for_work_of(pool_.processes_, true), [&] { return has_read(); })
                 : has_read_within(kNever))
    return;
  pool_.is_stuck_ = true;
  keep_all_memory(reading_->stream.get());
  keep_for_ever(std::move(reading_));
}

std::string Pool::probe_events(Context& c) { return EventProbe(*this, c).run(); }

}  // namespace accdp
