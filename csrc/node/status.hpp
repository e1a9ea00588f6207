#pragma once
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/birthplace.hpp"
#include "base/deadline.hpp"
#include "node/board.hpp"

namespace accdp {

/// A rank as it is shown to who looks from outside.
struct WaitedFor {
  int rank;
  int pid;
  std::string host;
};

/// What a rank does in one of its groups, as another process reads it.
struct GroupStatus {
  std::uint64_t group = 0;  ///< equal on its ranks, and on those of no other
  std::string name;
  int rank = 0, size = 0, nodes = 0;
  bool has_left = false;
  std::string failure;        ///< "" while it works
  Signature call;             ///< the collective that is under way, or was last; of none yet the sequence is 0
  std::int64_t begun_ns = 0;  ///< of the monotonic clock, as all times here
  std::int64_t ended_ns = 0;  ///< 0 while it is under way
  /// A wait that is long already: of a collective, or of messages.
  struct Wait {
    Channel channel;
    bool is_attended;                ///< by the thread that moves messages while their owner does something else
    std::string what;                ///< "allreduce #17", "recv of 4 bytes, tag 7"
    std::vector<WaitedFor> ranks;    ///< the first of them
    int count;                       ///< how many they are
    std::int64_t since_ns, seen_ns;  ///< when it had been noticed, and was last
  };
  std::vector<Wait> waits;
};

struct StatusRecord;

/// A group's line on the page on which this process shows what it does. The page is nameless memory whose descriptor
/// stays open: who may look at the process finds it in /proc, also while every thread here stands still. Where there is
/// no room, or no memory for a page, a group is not shown.
class StatusLine {
 public:
  StatusLine(std::uint64_t group, const std::string& name, int rank, int size, int nodes) noexcept;
  StatusLine(const StatusLine&) = delete;
  ~StatusLine();

  // Of a collective, by whoever is in it.
  void begin(const Signature& call, Clock::time_point now) noexcept;
  void end(Clock::time_point now) noexcept;
  // Of any thread.
  static constexpr int kMostShown = 6;  ///< of ranks that are waited for
  void wait(const GroupStatus::Wait& wait) noexcept;
  void end_wait(Channel channel) noexcept;
  void fail(const std::string& text) noexcept;
  void leave() noexcept;

 private:
  bool is_shown() const noexcept;

  StatusRecord* record_;
  Birthplace birthplace_;
  std::mutex mutex_;  // of what several threads may write
};

constexpr const char* kStatusLabel = "accdp-status";  ///< of the page's memory

/// A page as its process wrote it, or is writing it.
struct StatusOfProcess {
  int pid;  ///< of the page's owner, as itself knows it; a process that was forked from it has the page, too
  std::vector<GroupStatus> groups;
  std::uint64_t not_shown;  ///< groups for which there was no room
};
/// Throws UsageError where it is no page, or another version's.
StatusOfProcess read_status(std::span<const std::byte> page);

}  // namespace accdp
