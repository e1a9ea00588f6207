#pragma once
#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>

namespace accdp {

/// Whether pieces that other cores read are written past the caches, by what ordinary stores cost.
///
/// The readers of a place hold its lines when it is written again. An ordinary store asks for each of them first,
/// hardly more than one at a time, which takes the longer the farther their cores are: on an AMD EPYC 3 ns a line on
/// one core's two threads, 7 to 10 in one socket, 30 to 40 between sockets. Past the caches the writer waits for
/// nothing, but the reader gets what memory gives. Who writes is then the slower one of the two or, past the caches,
/// who reads: so the writer compares what its own stores cost with what a way through memory does. Near that limit
/// either is as good, and memory has more to do past the caches: so only what costs twice as much is far. On lines
/// that their readers no longer hold (Board::take_slot) ordinary stores cost 2 to 6 ns in one socket.
class StoreChoice {
 public:
  explicit StoreChoice(double memory_ns_per_byte) : memory_(memory_ns_per_byte) {}

  bool past_caches() const { return past_caches_; }
  /// Whether the next piece should be written by ordinary stores, and timed. To be asked once for each.
  bool is_due() {
    if (--until_due_ > 0) return false;
    until_due_ = past_caches_ ? kSeldom : is_decided_ ? kOften : 1;
    return true;
  }
  /// Ordinary stores took so long. One that was fast says all; that they are slow is believed when none of some was
  /// fast, for others may have had this core meanwhile.
  void note(double ns_per_byte) {
    if (past_caches_) {
      if (ns_per_byte < memory_ * kFar) *this = StoreChoice(memory_);
      return;
    }
    least_ = std::min(least_, ns_per_byte);
    if (++samples_ < kSamples) return;
    past_caches_ = least_ > memory_ * kFar;
    samples_ = 0;
    least_ = std::numeric_limits<double>::infinity();
    is_decided_ = true;
  }

 private:
  static constexpr int kSamples = 8, kOften = 4, kSeldom = 32;  // pieces
  static constexpr double kFar = 2;

  double memory_, least_ = std::numeric_limits<double>::infinity();
  int samples_ = 0, until_due_ = 1;
  bool past_caches_ = false, is_decided_ = false;
};

/// Writes what other ranks of the node read next, each piece in the way that is faster here and now.
class SlotWriter {
 public:
  SlotWriter();  ///< as ACCDP_SLOT_STORES says
  /// By what ordinary stores cost, where the way through memory costs so much.
  explicit SlotWriter(double memory_ns_per_byte);

  void write(std::byte* to, const void* from, std::size_t bytes) { write_part(to, from, bytes, 0); }
  /// Of a piece of `of_bytes` that prefers_copies() was asked about.
  void write_part(std::byte* to, const void* from, std::size_t bytes, std::size_t of_bytes);
  /// Whether a piece that could be made in its place should be made elsewhere and written from there. To be asked once
  /// for each.
  bool prefers_copies(std::size_t bytes);

 private:
  enum class How { kCached, kStreaming, kAuto } how_;
  bool is_due_ = false;  // already, as prefers_copies() has said
  // Of short pieces and of long ones, whose lines their readers no longer have in their own caches.
  std::optional<StoreChoice> choices_[2];
  StoreChoice& choice_for(std::size_t bytes);
};

}  // namespace accdp
