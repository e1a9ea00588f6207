#include "gpu/readers.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "base/deadline.hpp"
#include "base/keep.hpp"
#include "node/process.hpp"

namespace accdp {
namespace {

constexpr std::chrono::microseconds kReadersLook{200};
constexpr int kLooksPerCensus = 100;

/// Those of all pools of this process. Never destroyed: no CUDA call after main().
struct Remembered {
  const Birthplace birthplace;
  std::mutex mutex;
  std::vector<std::shared_ptr<Readers>> all;
};
std::atomic<Remembered*> g_remembered{nullptr};

/// Of this process; none before it had a pool.
Remembered* remembered() {
  Remembered* const found = g_remembered.load();
  return found && !found->birthplace.is_elsewhere() ? found : nullptr;
}

/// Those that nobody but this list has any more, and that have read, end without the lock.
std::vector<std::shared_ptr<Readers>> take_finished(Remembered& from) noexcept {
  std::lock_guard lock(from.mutex);
  const auto rest = std::partition(from.all.begin(), from.all.end(), [](const std::shared_ptr<Readers>& one) {
    return one.use_count() > 1 || !one->have_read(true);
  });
  std::vector<std::shared_ptr<Readers>> finished(std::make_move_iterator(rest),
                                                 std::make_move_iterator(from.all.end()));
  from.all.erase(rest, from.all.end());
  return finished;
}

}  // namespace

EndlessWait wait_for_work_of(std::vector<Process> processes, bool has_failed) {
  return EndlessWait([processes = std::move(processes), has_failed] {
    const auto lives = [](const Process& one) { return process_lives(one.pid, one.start_time); };
    return has_failed || !std::ranges::all_of(processes, lives);
  });
}

Readers::Readers(std::shared_ptr<Board> board) : board_(std::move(board)), device_(current_device()) {}

Readers::~Readers() {
  const std::optional<DeviceGuard> guard = guard_if_possible(device_);
  if (keeps_all_memory()) keep_for_ever(std::move(readers_));
  readers_.clear();
}

void Readers::add(int local_rank, int rank, const Process& process, Event read) {
  std::lock_guard lock(mutex_);
  readers_.push_back({local_rank, rank, process, std::move(read)});
}

void Readers::hand_over(const Event* read, cudaStream_t stream) {
  const std::uint64_t step = published_;
  if (step == handed_over_) return;
  read ? record(*read, stream) : synchronize(stream);
  handed_over_ = step;
  board_->mine().reads_handed_over.store(step, std::memory_order_release);
  if (!read) say_done(step);
}

void Readers::say_done(std::uint64_t step) const noexcept {
  if (birthplace_.is_elsewhere()) return;  // what the parent's device has done is not to be learned from here
  std::atomic<std::uint64_t>& said = board_->mine().reads_done;
  std::uint64_t before = said.load(std::memory_order_relaxed);
  while (before < step && !said.compare_exchange_weak(before, step, std::memory_order_release)) {
  }
}

bool Readers::has_read(Reader& reader, bool looks_for_deaths) const noexcept {
  const RankLine& line = board_->line(reader.local_rank);
  const std::uint64_t step = published_;
  if (line.reads_done.load(std::memory_order_acquire) >= step) return true;
  // First: the event may go with its process.
  if (looks_for_deaths && !process_lives(reader.process.pid, reader.process.start_time)) return true;
  const bool is_handed_over = line.reads_handed_over.load(std::memory_order_acquire) >= step;
  return is_handed_over && reader.read && is_done(reader.read);
}

bool Readers::have_read(bool looks_for_deaths) noexcept {
  if (published_ == 0 || is_given_up_ || birthplace_.is_elsewhere() || board_->has_failed()) return true;
  const std::optional<DeviceGuard> guard = guard_if_possible(device_);  // the process may end on a thread without one
  std::lock_guard lock(mutex_);
  bool all = true;
  for (Reader& reader : readers_) {
    reader.has_read = has_read(reader, looks_for_deaths);
    all = all && reader.has_read;
  }
  return all;
}

std::string Readers::names() const {
  std::lock_guard lock(mutex_);
  std::string text;
  for (const Reader& reader : readers_)
    if (!reader.has_read)
      text += (text.empty() ? "rank " : ", rank ") + std::to_string(reader.rank) + " (pid " +
              std::to_string(reader.process.pid) + ")";
  return text;
}

void remember(std::shared_ptr<Readers> readers) {
  static Remembered* const mine = new Remembered;
  g_remembered = mine;
  std::lock_guard lock(mine->mutex);
  mine->all.push_back(std::move(readers));
}

void forget_readers() noexcept {
  if (Remembered* const mine = remembered()) take_finished(*mine);
}

bool await_readers(std::chrono::duration<double> most) noexcept {
  Remembered* const mine = remembered();
  if (!mine) return true;
  const RelaxedCapture relaxed;
  std::vector<std::shared_ptr<Readers>> awaited;
  {
    std::lock_guard lock(mine->mutex);
    awaited = mine->all;
  }
  const auto given_up = Clock::now() + std::chrono::duration_cast<Clock::duration>(most);
  const auto missing = [&](int look) {
    return std::find_if(awaited.begin(), awaited.end(),
                        [&](const auto& one) { return !one->have_read(look % kLooksPerCensus == 0); });
  };
  auto found = missing(0);
  for (int look = 1; found != awaited.end() && Clock::now() < given_up; found = missing(look++))
    std::this_thread::sleep_for(kReadersLook);
  const bool have_read = found == awaited.end();
  if (!have_read)
    std::fprintf(stderr,
                 "accdp: process %d ends although %s may have yet to read its device memory, after waiting %g s\n",
                 static_cast<int>(getpid()), (*found)->names().c_str(), most.count());
  awaited.clear();
  forget_readers();
  return have_read;
}

}  // namespace accdp
