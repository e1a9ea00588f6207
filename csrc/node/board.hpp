#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/handle.hpp"
#include "base/types.hpp"

namespace accdp {

/// Memory that has no name which could be left behind, and no bytes yet; others find it in /proc of whoever holds it.
/// The caller closes the descriptor, as exec does.
int nameless_memory(const char* label);
int try_nameless_memory(const char* label, bool may_be_sealed) noexcept;  ///< -1, with errno, where there is none

/// Where the buffers of a call are.
enum class MemoryKind : std::uint8_t { kHost, kDevice };

/// What a rank says about the collective it enters; equal on all ranks, or the group fails.
struct Signature {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;   ///< elements
  std::uint64_t layout = 0;  ///< hash of per-rank counts where they may differ, else 0
  std::uint64_t check = 0;   ///< checksum of what all ranks must hold alike already (a reference), else 0
  std::int32_t root = -1;    ///< -1 where the operation has none
  std::uint8_t kind = 0;     ///< coll/call.hpp
  Datatype type = Datatype::kBytes;
  std::uint8_t op = 255;  ///< ReduceOp, 255 where the operation has none
  MemoryKind memory = MemoryKind::kHost;
  /// What ranks tell each other along with a bcast_compressed, all of it together; else 0. Not compared.
  std::uint64_t notice = 0;

  bool operator==(const Signature& other) const {
    return sequence == other.sequence && count == other.count && layout == other.layout && check == other.check &&
           root == other.root && kind == other.kind && type == other.type && op == other.op && memory == other.memory;
  }
  /// Of all that is compared. Never equal where one of the 8-byte words differs; where several do, with 2^-64.
  std::uint64_t digest() const;
};
static_assert(sizeof(Signature) == 48);

/// Why a group cannot go on. Written once by the first rank that notices, read by all of its node.
enum class FailureKind : std::uint32_t { kMismatch, kTimeout, kDied, kOther, kDamaged, kLeft };
[[noreturn]] void throw_failure(FailureKind kind, const std::string& text);
FailureKind kind_of(const std::exception& error) noexcept;  ///< where one ends an operation

/// What one waiting thread sleeps on.
struct Bell {
  std::atomic<std::uint32_t> rung{0};
  std::atomic<std::uint32_t> sleeping{0};

  /// To be called after the change that a sleeper may wait for was stored.
  void ring() noexcept;
  void wake_if_sleeping() noexcept;  ///< the same after a full fence of the caller's
};

enum Channel { kCollective = 0, kPointToPoint = 1, kChannels = 2 };

/// What a rank says or hands over in a step stays there so many steps: as far as it may be ahead of the slowest rank,
/// and one more, because who has published the step after the one that it read is done with it. Many, because where
/// ranks outnumber cores each turn on a core costs a switch, and a rank does half of them in a turn.
constexpr std::uint64_t kShortSlots = 31, kMostAhead = kShortSlots - 1;
constexpr std::size_t kShortSlotBytes = 8 << 10;

/// How a rank came to the group's memory: not yet; it has it; it has no room for more than its beginning.
enum class Arrival : std::uint32_t { kNone, kMapped, kTurnedAway };

/// One rank's part of the shared segment: written by that rank, read by all; bells are rung by all.
struct alignas(128) RankLine {
  std::atomic<std::uint64_t> step{0};
  std::uint64_t places[2];             ///< in its two slots: where it wrote, of the last step of each
  std::uint64_t digests[kShortSlots];  ///< of its signatures; with `step` all that others read: one or two cache lines
  std::atomic<std::int32_t> core{0};   ///< where it last ran, counted from 1; 0: not known
  alignas(64) Bell bells[kChannels];
  std::atomic<std::uint32_t> drives{0};         ///< whether a caller waits there for messages, and moves them
  std::atomic<std::uint64_t> probe_address{0};  ///< of a word in that rank's memory that holds `probe_value`
  std::atomic<std::uint64_t> probe_value{0};
  std::atomic<Arrival> arrival{Arrival::kNone};  ///< set once all the rest is
  std::atomic<std::uint32_t> left{0};
  std::uint8_t cores[1024];  ///< affinity mask, for as many as Linux can be built for; cpu_set_t has an eighth of that
  /// Up to which step it has handed its reads of device memory of the node's other ranks to its device, and up to which
  /// these are known to be done.
  std::atomic<std::uint64_t> reads_handed_over{0}, reads_done{0};
  /// Of a node's leader: what ranks of all nodes told (Signature::notice), and last in which call.
  std::atomic<std::uint64_t> told{0}, told_in{0};
  /// Of the calls whose first step it was. Apart from what others read, so that to write it costs little.
  alignas(128) Signature signatures[kShortSlots];
};

/// One direction of a pair of ranks; data lies in the segment's ring area. Each side remembers what it last saw of the
/// other's counter, and looks at that again only when it needs more: each look takes the line from whoever writes it.
struct alignas(128) RingLine {
  std::atomic<std::uint64_t> written{0};
  std::uint64_t taken_seen = 0;  ///< the writer's
  std::uint64_t paged = 0;       ///< the writer's: bytes from the start on that have pages
  alignas(64) std::atomic<std::uint64_t> taken{0};
  std::uint64_t written_seen = 0;         ///< the reader's
  std::atomic<std::uint64_t> matched{0};  ///< the reader's: what PostOffice counts of what came ahead
};

/// The memory that the ranks of one node share: counters, slots for collectives, rings for messages.
/// Made of zero bytes, which is its valid first state, so nobody has to initialise it for the others.
class Board {
 public:
  static std::size_t segment_bytes(int local_size);
  /// Of one slot: a chunk, and a piece for each rank of the node at the least.
  static std::size_t slot_bytes_for(std::size_t local_size, std::size_t chunk_bytes);

  /// Of one ring: as the setting says, or less where a rank has many.
  static std::size_t ring_bytes_for(std::size_t local_size);

  /// `fd`: the node's memfd, or -1 for a rank alone on its node (private memory).
  Board(int fd, int local_size, int local_rank);
  Board(const Board&) = delete;
  /// Of a rank that cannot have the whole: as much as failures are told by. Throws where it cannot even have that.
  static std::unique_ptr<Board> beginning(int fd, int local_size, int local_rank);

  int local_size() const { return local_size_; }
  int local_rank() const { return local_rank_; }
  RankLine& line(int rank) const;
  RankLine& mine() const { return line(local_rank_); }
  void note_core() const noexcept;  ///< on which core this rank runs
  RingLine& ring_line(int from, int to) const;
  std::byte* ring_data(int from, int to) const;
  /// Where this rank writes so many bytes in a step, when nobody reads any more what it wrote two steps before. Its
  /// readers are told the place along with the step.
  ///
  /// It wanders downwards through the slot. Lines that lie in their readers' own caches are written again hardly more
  /// than one at a time; by the time that this one comes round they are there no longer. Downwards, because a processor
  /// reads ahead: behind the end of what is read there then lies what was read before, not what is written next.
  std::byte* take_slot(std::uint64_t step, std::size_t bytes);
  std::byte* slot(int rank, std::uint64_t step) const;  ///< once that rank has published the step
  std::byte* short_slot(int rank, std::uint64_t step) const;
  Signature& signature(int rank, std::uint64_t step) const { return line(rank).signatures[step % kShortSlots]; }
  std::uint64_t& digest(int rank, std::uint64_t step) const { return line(rank).digests[step % kShortSlots]; }
  std::size_t slot_bytes() const { return layout_.slot_bytes; }
  std::size_t short_slot_bytes() const { return std::min(kShortSlotBytes, slot_bytes()); }
  std::size_t ring_bytes() const { return layout_.ring_bytes; }

  bool has_failed() const;
  /// The first call counts; wakes everybody. `call`: the number of the collective that ranks disagree on, else 0.
  void fail(FailureKind kind, const std::string& text, std::uint64_t call = 0) noexcept;
  std::pair<FailureKind, std::string> failure() const;
  std::uint64_t failed_call() const;
  void ring_others(Channel channel) const noexcept;
  /// Whether this rank can read that one's memory, process `pid`: 0 or an errno (node/peer_memory.hpp).
  int probe_memory_of(int rank, int pid) const noexcept;
  /// Cores that the ranks of this node may use together (the union of their affinity masks).
  int usable_cores() const;

 private:
  struct Head;
  struct MappingTraits {
    struct Raw {
      std::byte* data;
      std::size_t bytes;
      bool operator==(const Raw&) const = default;
    };
    static Raw none() noexcept { return {nullptr, 0}; }
    static void close(Raw raw) noexcept;
  };
  /// Where things lie, from the settings in force when the segment was made: later ones must not move it.
  struct Layout {
    std::size_t slot_bytes, ring_bytes, lines, ring_lines, short_slots, slots, rings, bytes;
  };
  static Layout layout_for(int local_size);
  Board(int local_size, int local_rank);  ///< of which nothing is mapped
  void map(int fd, std::size_t bytes);
  Head& head() const;
  std::byte* at(std::size_t offset) const { return mapping_.get().data + offset; }

  int local_size_;
  int local_rank_;
  Layout layout_;
  Handle<MappingTraits> mapping_;
  struct Wandering {
    std::size_t lowest = 0;  ///< what was last taken
    std::size_t paged = 0;   ///< bytes at the upper end that have pages
  } wandering_[2];           ///< in this rank's two slots
  std::uint64_t probe_word_;
};

}  // namespace accdp
