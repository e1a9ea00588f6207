#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/birthplace.hpp"
#include "base/deadline.hpp"
#include "node/board.hpp"

namespace accdp {

/// What a rank has to do with another one by messages: bits.
enum MessageParts : std::uint32_t { kSends = 1, kReceives = 2, kAwaitsSend = 4, kAwaitsReceive = 8, kAwaitsAny = 16 };

/// What may be waited for at the same time in a group, by different threads. Of attended messages nobody waits for the
/// end: their owner does something else meanwhile.
enum WaitKind : std::uint8_t { kForCollective, kForMessages, kForAttended, kWaitKinds };

/// A rank as it is shown to who looks from outside.
struct WaitedFor {
  int rank;
  int pid;
  std::string host;
  std::uint32_t parts = 0;  ///< of a wait for messages: those that are open between the two, and what it waits for
};

/// What a rank does in one of its groups, as another process reads it.
struct GroupStatus {
  std::uint64_t group = 0;  ///< equal on its ranks, and on those of no other
  std::string name;
  int rank = 0, size = 0, nodes = 0;
  bool has_left = false;
  bool is_background = false;  ///< the collective runs on a thread that its caller may wait for, or not
  std::string failure;         ///< "" while it works
  Signature call;              ///< the collective that is under way, or was last; of none yet the sequence is 0
  std::int64_t begun_ns = 0;   ///< of the monotonic clock, as all times here
  std::int64_t ended_ns = 0;   ///< 0 while it is under way
  /// A wait that is long already: of a collective, or of messages.
  struct Wait {
    WaitKind kind;
    bool is_for_any = false;             ///< a message that may come from any of those with kAwaitsAny, too
    bool is_partial = false;             ///< there were more ranks, or messages, than are listed
    std::string what{};                  ///< "allreduce #17", "recv of 4 bytes, tag 7"
    std::vector<WaitedFor> ranks{};      ///< the first of them, those that are waited for before others
    int count = 0;                       ///< how many are waited for
    std::int64_t since_ns = 0, seen_ns;  ///< when it began, and was last noticed
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
  void end_wait(WaitKind kind) noexcept;
  void fail(const std::string& text) noexcept;
  void leave() noexcept;
  std::uint64_t group() const { return group_; }

 private:
  bool is_shown() const noexcept;

  std::uint64_t group_;
  StatusRecord* record_;
  bool is_counted_ = false;  // among those for which there was no room
  Birthplace birthplace_;
  std::mutex mutex_;  // of what several threads may write
};

constexpr const char* kStatusLabel = "accdp-status";  ///< of the page's memory

/// While there is one, a thread waits for operations that others run: those hold it up.
class BlockedThread {
 public:
  BlockedThread() noexcept;
  BlockedThread(const BlockedThread&) = delete;
  ~BlockedThread();

 private:
  Birthplace birthplace_;
};

/// While there is one, this thread runs operations whose callers may do something else meanwhile.
class BackgroundThread {
 public:
  BackgroundThread() noexcept;
  BackgroundThread(const BackgroundThread&) = delete;
  ~BackgroundThread();
  static bool is_this() noexcept;
};

/// A page as its process wrote it, or is writing it.
struct StatusOfProcess {
  int pid;  ///< of the page's owner, as itself knows it; a process that was forked from it has the page, too
  std::vector<GroupStatus> groups{};
  int not_shown = 0;      ///< groups for which there was no room
  int blocked = 0;        ///< threads that wait for operations of others
  std::string trouble{};  ///< why nothing more is known
};
/// Throws UsageError where it is no page.
StatusOfProcess read_status(std::span<const std::byte> page);
/// Of a process whose files this one may see, by its pid; nothing where it shows none.
std::optional<StatusOfProcess> status_of_process(int pid);

}  // namespace accdp
