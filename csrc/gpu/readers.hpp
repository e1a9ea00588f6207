#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/birthplace.hpp"
#include "device/cuda.hpp"
#include "gpu/await_readers.hpp"
#include "gpu/endless_wait.hpp"
#include "node/board.hpp"

namespace accdp {

struct Process {
  int pid;
  std::uint64_t start_time;
  bool operator==(const Process&) const = default;
};

/// What a device does may be behind the work of these processes. has_failed: that some of it may never come is known.
EndlessWait wait_for_work_of(std::vector<Process> processes, bool has_failed = false);

/// Who reads this rank's slots of a pool, and may have yet to do so when the pool goes, or the process: with that goes
/// its memory, which is undefined for a stream that comes to read there. So a process waits for them before it ends.
///
/// After each operation a rank records an event behind its reads and says on the node's board up to which step these
/// have been handed over; once its stream is known to have done them, that too. Others ask the event only as long as
/// the rank has not said that, since the event may go with its process. Where events of other processes do not work,
/// the rank waits for its stream: a function of the host in the stream, that would say it, stands still with some
/// drivers while memory is freed. Nobody waits for a rank that is gone, nor after a failure.
class Readers {
 public:
  /// Of the current device.
  explicit Readers(std::shared_ptr<Board> board);
  Readers(const Readers&) = delete;
  ~Readers();
  /// A local rank that reads. `read`: the event that it records; none where it does without.
  void add(int local_rank, int rank, const Process& process, Event read);

  // What this rank says of itself, in steps of the node: of the pool all of its ranks take the same ones.
  void publishes(std::uint64_t step) { published_ = step; }
  /// What it reads in the steps up to there, unless it had said so before. read: to be recorded; null: waits for it.
  void hand_over(const Event* read, cudaStream_t stream);
  /// What had been handed over by then is done.
  std::uint64_t handed_over() const { return handed_over_; }
  void say_done(std::uint64_t step) const noexcept;

  /// Of the others: whether all that they will read of what was written here has been read. Looks whether they live
  /// where asked to.
  bool have_read(bool looks_for_deaths) noexcept;
  /// Nobody waits for them any more.
  void give_up() { is_given_up_ = true; }
  std::string names() const;  ///< of those that have not read, as the last have_read() found them

 private:
  struct Reader {
    int local_rank, rank;
    Process process;
    Event read;
    bool has_read = false;
  };
  bool has_read(Reader& reader, bool looks_for_deaths) const noexcept;

  const Birthplace birthplace_;
  const std::shared_ptr<Board> board_;
  const int device_;
  mutable std::mutex mutex_;
  std::vector<Reader> readers_;
  std::atomic<std::uint64_t> published_{0}, handed_over_{0};
  std::atomic<bool> is_given_up_{false};
};

/// From now on await_readers() waits for them. Forgets those that have read.
void remember(std::shared_ptr<Readers> readers);
/// Drops what the pools of before have left, as far as it has been read.
void forget_readers() noexcept;

}  // namespace accdp
