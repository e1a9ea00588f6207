#include "node/board.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <thread>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/rounding.hpp"
#include "base/settings.hpp"
#include "node/copies.hpp"
#include "node/pages.hpp"
#include "node/peer_memory.hpp"

namespace accdp {

struct alignas(128) Board::Head {
  enum : std::uint32_t { kNone, kBeingWritten, kReady };
  std::atomic<std::uint32_t> failure;
  FailureKind kind;
  std::uint64_t call;
  char text[1000];
};

namespace {

constexpr std::size_t kHeadBytes = 4096;
/// A slot holds a piece for each of the node's ranks at the least, whatever the chunk size.
constexpr std::size_t kLeastPieceBytes = 256;
/// Not a power of two, or all short slots would begin in the same set of a cache.
constexpr std::size_t kShortSlotStride = kShortSlotBytes + 128;
/// So little is written again in less time than memory further away answers.
constexpr std::size_t kStaysBytes = 2 << 10;
/// Of all rings that one rank writes, where that does not make them shorter than this.
constexpr std::size_t kMostRingBytes = 16 << 20, kLeastRingBytes = 256 << 10;
constexpr std::chrono::seconds kWritingTakes{1};  // at most: the reason of a failure

constexpr std::size_t page(std::size_t bytes) { return (bytes + 4095) & ~std::size_t{4095}; }

}  // namespace

void throw_failure(FailureKind kind, const std::string& text) {
  switch (kind) {
    case FailureKind::kMismatch: throw MismatchError(text);
    case FailureKind::kTimeout: throw PeerTimeout(text);
    case FailureKind::kLeft:
    case FailureKind::kDied: throw PeerDied(text);
    case FailureKind::kDamaged: throw CodecError(text);
    case FailureKind::kOther: break;
  }
  throw Error(text);
}

FailureKind kind_of(const std::exception& error) noexcept {
  if (dynamic_cast<const MismatchError*>(&error)) return FailureKind::kMismatch;
  if (dynamic_cast<const CodecError*>(&error)) return FailureKind::kDamaged;
  if (dynamic_cast<const PeerDied*>(&error)) return FailureKind::kDied;
  return FailureKind::kOther;
}

std::uint64_t Signature::digest() const {
  std::uint64_t small;
  std::memcpy(&small, &root, sizeof small);
  static_assert(offsetof(Signature, memory) + sizeof memory == offsetof(Signature, root) + sizeof small);
  std::uint64_t hash = 0;
  for (std::uint64_t word : {sequence, count, layout, check, small}) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;  // each line can be undone
    hash ^= hash >> 32;
  }
  return hash;
}

void Bell::ring() noexcept {
  // The sleeper announces itself, then looks once more, then sleeps; we store, then look for it: with
  // a full fence on both sides one of the two must see the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_if_sleeping();
}

void Bell::wake_if_sleeping() noexcept {
  if (sleeping.load(std::memory_order_relaxed) == 0) return;
  rung.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Board::MappingTraits::close(Raw raw) noexcept { munmap(raw.data, raw.bytes); }

std::size_t Board::slot_bytes_for(std::size_t local_size, std::size_t chunk_bytes) {
  return std::max(chunk_bytes, page(local_size * kLeastPieceBytes));
}

std::size_t Board::ring_bytes_for(std::size_t local_size) {
  const std::size_t asked = settings().ring_bytes, four_eager = std::bit_ceil(std::size_t(4 * settings().eager_bytes));
  return std::min(asked, std::max({std::bit_floor(kMostRingBytes / local_size), kLeastRingBytes, four_eager}));
}

Board::Layout Board::layout_for(int local_size) {
  const std::size_t ranks = local_size;
  Layout at;
  at.slot_bytes = slot_bytes_for(ranks, settings().chunk_bytes);
  at.ring_bytes = ring_bytes_for(ranks);
  at.lines = kHeadBytes;
  at.ring_lines = page(at.lines + ranks * sizeof(RankLine));
  at.short_slots = page(at.ring_lines + ranks * ranks * sizeof(RingLine));
  at.slots = page(at.short_slots + ranks * kShortSlots * kShortSlotStride);
  at.rings = page(at.slots + ranks * 2 * at.slot_bytes);
  at.bytes = page(at.rings + ranks * ranks * at.ring_bytes);
  return at;
}

int try_nameless_memory(const char* label, bool may_be_sealed) noexcept {
  constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL: since Linux 6.3, where systems may refuse what lacks it
  const unsigned flags = MFD_CLOEXEC | (may_be_sealed ? MFD_ALLOW_SEALING : 0);
  const int fd = memfd_create(label, flags | kNoExecSeal);
  return fd < 0 && errno == EINVAL ? memfd_create(label, flags) : fd;
}

int nameless_memory(const char* label) { return ACCDP_SYSTEM(try_nameless_memory(label, false)); }

std::size_t Board::segment_bytes(int local_size) { return layout_for(local_size).bytes; }

Board::Board(int local_size, int local_rank)
    : local_size_(local_size), local_rank_(local_rank), layout_(layout_for(local_size)) {
  static_assert(sizeof(Head) <= kHeadBytes);
}

void Board::map(int fd, std::size_t bytes) {
  int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
  // Every rank sets the same size, so none has to wait for another to have done it.
  if (fd >= 0) ACCDP_SYSTEM(ftruncate(fd, static_cast<off_t>(layout_.bytes)));
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) throw_system("mmap of the node's shared segment", errno, __FILE__, __LINE__);
  mapping_ = Handle<MappingTraits>({static_cast<std::byte*>(memory), bytes});
}

std::unique_ptr<Board> Board::beginning(int fd, int local_size, int local_rank) {
  std::unique_ptr<Board> board(new Board(local_size, local_rank));
  board->map(fd, board->layout_.short_slots);
  return board;
}

Board::Board(int fd, int local_size, int local_rank) : Board(local_size, local_rank) {
  map(fd, layout_.bytes);
  cpu_set_t set[sizeof(RankLine::cores) / sizeof(cpu_set_t)] = {};
  if (sched_getaffinity(0, sizeof set, set) == 0) std::memcpy(mine().cores, set, sizeof set);
  if (settings().cma == "on") allow_peers_to_read();
  // Unlike anything that lies at this address in another process that has the same pid elsewhere.
  probe_word_ = std::uint64_t(getpid()) << 32 ^ Clock::now().time_since_epoch().count() ^ local_rank;
  mine().probe_value.store(probe_word_, std::memory_order_relaxed);
  mine().probe_address.store(reinterpret_cast<std::uint64_t>(&probe_word_), std::memory_order_relaxed);
  mine().arrival.store(Arrival::kMapped, std::memory_order_release);
}

Board::Head& Board::head() const { return *reinterpret_cast<Head*>(mapping_.get().data); }

RankLine& Board::line(int rank) const { return reinterpret_cast<RankLine*>(at(layout_.lines))[rank]; }

void Board::note_core() const noexcept {
  const int core = sched_getcpu() + 1;
  std::atomic<std::int32_t>& noted = mine().core;
  if (noted.load(std::memory_order_relaxed) != core) noted.store(core, std::memory_order_relaxed);
}

RingLine& Board::ring_line(int from, int to) const {
  return reinterpret_cast<RingLine*>(at(layout_.ring_lines))[from * local_size_ + to];
}
std::byte* Board::ring_data(int from, int to) const {
  return at(layout_.rings + (std::size_t(from) * local_size_ + to) * layout_.ring_bytes);
}
std::byte* Board::take_slot(std::uint64_t step, std::size_t bytes) {
  std::uint64_t& place = mine().places[step % 2];
  if (bytes <= kStaysBytes) {
    place = 0;
  } else {
    Wandering& at = wandering_[step % 2];
    bytes = std::min(whole_lines(bytes), layout_.slot_bytes);
    if (at.lowest < bytes) at.lowest = layout_.slot_bytes;
    place = at.lowest -= bytes;
    const std::size_t used = layout_.slot_bytes - place;
    if (used > at.paged) {
      const std::size_t paged = pages_ahead(at.paged, used, layout_.slot_bytes);
      make_pages(slot(local_rank_, step) + used - paged, paged - at.paged);
      at.paged = paged;
    }
  }
  return slot(local_rank_, step);
}

std::byte* Board::slot(int rank, std::uint64_t step) const {
  return at(layout_.slots + (std::size_t(rank) * 2 + step % 2) * layout_.slot_bytes) + line(rank).places[step % 2];
}

std::byte* Board::short_slot(int rank, std::uint64_t step) const {
  return at(layout_.short_slots + (rank * kShortSlots + step % kShortSlots) * kShortSlotStride);
}

bool Board::has_failed() const { return head().failure.load(std::memory_order_acquire) == Head::kReady; }

void Board::fail(FailureKind kind, const std::string& text, std::uint64_t call) noexcept {
  std::uint32_t none = Head::kNone;
  bool is_first = head().failure.compare_exchange_strong(none, Head::kBeingWritten);
  if (!is_first) {
    // The reason that counts is there, or on its way, which takes microseconds: unless its writer dies meanwhile.
    const auto until = Clock::now() + kWritingTakes;
    while (!has_failed() && Clock::now() < until) std::this_thread::yield();
    is_first = !has_failed();
  }
  if (is_first) {
    head().kind = kind;
    head().call = call;
    std::size_t bytes = std::min(text.size(), sizeof head().text - 1);
    // No half of a character of UTF-8, which Python would not print.
    while (bytes < text.size() && bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
    std::memcpy(head().text, text.data(), bytes);
    head().text[bytes] = '\0';
    head().failure.store(Head::kReady, std::memory_order_release);
  }
  for (int channel = 0; channel < kChannels; ++channel) ring_others(static_cast<Channel>(channel));
  for (Bell& bell : mine().bells) bell.ring();
}

std::pair<FailureKind, std::string> Board::failure() const { return {head().kind, head().text}; }

std::uint64_t Board::failed_call() const { return head().call; }

void Board::ring_others(Channel channel) const noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // one for all of them, as in Bell::ring()
  for (int rank = 0; rank < local_size_; ++rank)
    if (rank != local_rank_) line(rank).bells[channel].wake_if_sleeping();
}

int Board::probe_memory_of(int rank, int pid) const noexcept {
  std::uint64_t word = 0;
  const int error = read_peer_memory(pid, line(rank).probe_address, {reinterpret_cast<std::byte*>(&word), sizeof word});
  return error ? error : word == line(rank).probe_value ? 0 : ESRCH;
}

int Board::usable_cores() const {
  int cores = 0;
  for (std::size_t byte = 0; byte < sizeof(RankLine::cores); ++byte) {
    unsigned together = 0;
    for (int rank = 0; rank < local_size_; ++rank) together |= line(rank).cores[byte];
    cores += __builtin_popcount(together);
  }
  return cores;
}

}  // namespace accdp
