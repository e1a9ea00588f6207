#include "gpu/pool.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <type_traits>
#include <utility>

#include "base/keep.hpp"
#include "base/rounding.hpp"
#include "device/cuda_reduce.hpp"

namespace accdp {

/// What a rank tells the others before the first collective on device memory.
struct Pool::Card {
  GpuId gpu{};
  bool has_memory = false, has_events = false;
  cudaIpcMemHandle_t memory{};
  cudaIpcEventHandle_t events[2]{}, read{};
  std::uint64_t mark = 0;  // what its memory begins with, for who opens it
};

namespace {

// Devices hand out memory in blocks of so much, and who opens a part of a block has all of it.
constexpr std::size_t kBlockBytes = 2 << 20;

struct Spare {
  int device;
  PoolExports exports;
  std::vector<Process> readers;  // whose streams may still read the memory
};
std::mutex g_mutex;
/// Never destroyed, as the next: no CUDA call after main().
std::vector<Spare>& spares() {
  static auto* const list = new std::vector<Spare>;
  return *list;
}
/// Of this process.
std::set<Pool*>& pools() {
  static auto* const all = new std::set<Pool*>;
  return *all;
}

/// Memory that no process can still read once `readers` have done what is on their pools' streams.
PoolExports take_exports(int device, std::size_t bytes, const std::vector<Process>& readers) {
  std::lock_guard lock(g_mutex);
  const auto is_reader = [&](const Process& one) {
    return std::find(readers.begin(), readers.end(), one) != readers.end();
  };
  for (Spare& spare : spares())
    if (spare.device == device && spare.exports.memory.bytes() == bytes &&
        std::all_of(spare.readers.begin(), spare.readers.end(), is_reader)) {
      PoolExports found = std::move(spare.exports);
      std::swap(spare, spares().back());
      spares().pop_back();
      return found;
    }
  return {DeviceBuffer(bytes), {}, {}};
}

void give_back(int device, PoolExports exports, std::vector<Process> readers) {
  std::lock_guard lock(g_mutex);
  spares().push_back({device, std::move(exports), std::move(readers)});
}

}  // namespace

Pool::Pool(int me, int device, std::size_t slot_bytes) : me_(me), device_(device), slot_bytes_(slot_bytes) {}

Pool::Pool(Context& c, int device, std::size_t slot_bytes) : Pool(c.local_rank(), device, slot_bytes) {
  const DeviceGuard guard(device);
  for (int rank : c.topology().neighbours()) processes_.push_back({c.peer(rank).pid, c.peer(rank).start_time});
  // The others' memory may be what they had in a pool before, and this process may still be about to read there.
  settle_all();
  stream_ = make_stream(true);  // other ranks wait for its work, and a training step's kernels take long
  {
    std::lock_guard lock(g_mutex);
    pools().insert(this);
  }
  Card mine;
  mine.gpu = gpu_id(device);
  mine.mark = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()) * kMostSources + me_;
  std::string trouble, no_events;
  try {
    expect_code(device);
    exports_ = take_exports(device, round_up(2 * slot_bytes, kBlockBytes), processes_);
    mine.memory = exports_.memory.share();
    mine.has_memory = true;
  } catch (const CudaError& error) {
    trouble = error.what();
  }
  try {
    if (c.asked().orders_by_host) throw CudaError("ACCDP_GPU_PATH=by_host");
    for (int h : {0, 1}) {
      if (!exports_.published[h]) exports_.published[h] = make_event(true);
      mine.events[h] = share_event(exports_.published[h]);
    }
    if (!exports_.read) exports_.read = make_event(true);
    mine.read = share_event(exports_.read);
    mine.has_events = true;
  } catch (const CudaError& error) {
    no_events = error.what();  // ordering then goes through the host; every rank learns of it from the card
  }
  std::vector<Card> cards(c.local_size());
  exchange_cards(c, mine, cards);
  forget_readers();  // the others have settled what they read in pools of before, or will not do so any more
  bool memory = true, events = true;
  for (const Card& card : cards) {
    memory = memory && card.has_memory;
    events = events && card.has_events;
  }
  if (!memory) {
    why_not_ = "a rank has no memory to share" + (trouble.empty() ? "" : ": " + trouble);
    return;
  }
  if (c.local_size() > 1) {
    try {
      mark(mine.mark);
    } catch (const CudaError& error) {
      trouble = error.what();  // nobody finds the mark, so nobody shares memory with this rank
    }
    c.meet();
  }
  mappings_.resize(c.local_size());
  for (auto& half : published_) half.resize(c.local_size());
  read_.resize(c.local_size());
  is_usable_ = group_ranks(c, cards);
  if (!trouble.empty()) why_not_ = "memory to share cannot be written: " + trouble;
  if (!is_usable_) return;
  readers_ = std::make_shared<Readers>(c.board());
  for (int rank : groups_.mates()) one_gpu_ = one_gpu_ && cards[rank].gpu == mine.gpu;
  if (events) no_events = open_events(cards);
  why_no_events_ = first_trouble(c, no_events);
  if (why_no_events_.empty() && groups_.largest() > 1) why_no_events_ = probe_events(c);
  events_ = why_no_events_.empty();
  for (int rank : groups_.mates())
    if (rank != me_)
      readers_->add(rank, c.topology().neighbours()[rank], processes_[rank],
                    events_ ? std::move(read_[rank]) : Event());
  remember(readers_);
}

/// Who shares the pool with whom; false where not even all ranks of a GPU can open each other's memory.
bool Pool::group_ranks(Context& c, const std::vector<Card>& cards) {
  static_assert(kMostSources <= 32);  // more ranks have no pool, and here each has a bit
  const int ranks = c.local_size(), lanes = c.topology().fewest_local();
  std::string trouble = "opened";
  std::uint32_t mine = std::uint32_t{1} << me_;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == me_) continue;
    try {
      mappings_[rank] = open_memory(cards[rank].memory);
      if (reads_mark(rank, cards[rank].mark))
        mine |= std::uint32_t{1} << rank;
      else
        trouble = "read: what comes is not what is there";
    } catch (const CudaError& error) {
      trouble = std::string("opened: ") + error.what();
    }
  }
  std::memcpy(c.open(sizeof mine), &mine, sizeof mine);
  c.publish();
  c.await_all();
  std::vector<std::uint32_t> reached(ranks);
  for (int rank = 0; rank < ranks; ++rank) std::memcpy(&reached[rank], c.slot(rank), sizeof mine);
  std::vector<int> gpu_of;
  std::vector<GpuId> gpus;
  for (const Card& card : cards) {
    const auto found = std::find(gpus.begin(), gpus.end(), card.gpu);
    gpu_of.push_back(static_cast<int>(found - gpus.begin()));
    if (found == gpus.end()) gpus.push_back(card.gpu);
  }
  const std::vector<int> group_of = group_by_reach(gpu_of, reached);
  gpus_ = GpuGroups(me_, gpu_of, lanes);
  groups_ = GpuGroups(me_, group_of.empty() ? gpu_of : group_of, lanes);
  for (int a = 0; a < ranks; ++a)
    for (int b = 0; b < ranks; ++b)
      joins_gpus_ = joins_gpus_ || (groups_.of(a) == groups_.of(b) && gpus_.of(a) != gpus_.of(b) &&
                                    gpus_.members(gpus_.of(a)).size() > 1);
  if (groups_.count() > 1 || group_of.empty())
    why_not_ = std::string("memory of another ") + (gpus.size() == 1 ? "process" : "GPU") + " cannot be " + trouble;
  for (int rank = 0; rank < ranks; ++rank)
    if (groups_.of(rank) != groups_.mine()) mappings_[rank] = {};
  return !group_of.empty();
}

Pool::~Pool() {
  if (stream_) {
    drain(stream());
    std::lock_guard lock(g_mutex);
    pools().erase(this);
  }
  if (is_stuck_ || keeps_all_memory()) {
    // The end of what several processes have open waits for work as well. Where the constructor failed, what the probe
    // left waits for these events for ever.
    for (std::vector<Event>& half : published_) keep_for_ever(std::move(half));
    keep_for_ever(std::move(read_));
  }
  readers_.reset();
  if (!is_stuck_) forget_readers();
  if (exports_.memory.data()) give_back(device_, std::move(exports_), std::move(processes_));
}

bool Pool::settle(bool has_failed) noexcept {
  const std::uint64_t step = readers_ ? readers_->handed_over() : 0;
  if (!is_stuck_ &&
      !outlast_work(stream(), wait_for_work_of(processes_, has_failed), [&] { return is_done(stream()); }))
    is_stuck_ = true;
  if (readers_ && !is_stuck_) readers_->say_done(step);
  if (readers_ && (is_stuck_ || has_failed)) readers_->give_up();
  return !is_stuck_;
}

/// Waits for what the streams of all pools of this process hold now. Not until they hold nothing, which may never be
/// where another thread goes on with collectives. Nor with the mutex held: that thread may be about to leave its group.
void Pool::settle_all() {
  struct Held {
    Event passed;
    std::vector<Process> readers;
  };
  std::vector<Held> all;
  {
    std::lock_guard lock(g_mutex);
    for (const Pool* pool : pools()) {
      if (pool->is_stuck_ || is_done(pool->stream())) continue;
      const DeviceGuard guard(pool->device_);
      all.push_back({make_event(), pool->processes_});
      record(all.back().passed, pool->stream());
    }
  }
  for (const Held& held : all) outlast(wait_for_work_of(held.readers), [&] { return is_done(held.passed); });
}

void Pool::exchange_cards(Context& c, const Card& mine, std::vector<Card>& cards) {
  static_assert(std::is_trivially_copyable_v<Card> && sizeof(Card) <= 4096);  // the least size of a slot
  std::memcpy(c.open(sizeof mine), &mine, sizeof mine);
  c.publish();
  c.await_all();
  for (int rank = 0; rank < c.local_size(); ++rank) std::memcpy(&cards[rank], c.slot(rank), sizeof mine);
}

/// Why not, if they cannot be opened: ordering then goes through the host, on all ranks.
std::string Pool::open_events(const std::vector<Card>& cards) {
  try {
    for (int h : {0, 1})
      for (int rank : groups_.mates())
        if (rank != me_) published_[h][rank] = open_event(cards[rank].events[h]);
    for (int rank : groups_.mates())
      if (rank != me_) read_[rank] = open_event(cards[rank].read);
    return {};
  } catch (const CudaError& error) {
    return error.what();
  }
}

void Pool::wait_for_events() {
  awaited_ = step_;
  if (!events_) return;
  for (const Event& event : published_[half(step_)])
    if (event) wait_for(stream(), event);
}

std::byte* Pool::open(Context& c) {
  // A copy or a kernel, and a wait, for each mate, and what a rank does for itself.
  if (events_) lead_.grow(stream(), 3 * groups_.mates().size() + 4);
  c.open(0);  // waits until all have published the step before
  if (awaited_ < step_) wait_for_events();
  ++step_;
  return base(me_) + half(step_) * slot_bytes_;
}

void Pool::publish(Context& c) {
  if (events_)
    record(exports_.published[half(step_)], stream());
  else
    synchronize(stream());
  readers_->publishes(c.step());
  c.publish();
}

void Pool::await_all(Context& c) {
  c.await_all();
  wait_for_events();
}

void Pool::copy(std::span<const Copy> copies) {
  if (one_gpu_) return copy_async(copies, stream());
  // Over a link copy engines take nothing from kernels.
  for (const Copy& one : copies) copy_async(one.to, one.from, one.bytes, stream());
}

void Pool::hand_over_reads() {
  if (groups_.mates().size() > 1) readers_->hand_over(events_ ? &exports_.read : nullptr, stream());
}

}  // namespace accdp
