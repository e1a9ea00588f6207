#pragma once
#include <cstdint>

#include "node/board.hpp"
#include "node/slot_writer.hpp"

namespace accdp {

/// Starts every record in a ring; between nodes it follows the start of a letter (coll/post_office.hpp).
struct MessageHead {
  enum Kind : std::uint32_t {
    kEager = 1,     ///< the whole message follows
    kAsk = 2,       ///< a long message is ready; `id` names it
    kGrant = 3,     ///< the receiver has a place for message `id`
    kData = 4,      ///< the next `piece` bytes of message `id`
    kTaken = 5,     ///< the receiver has copied message `id` out of the sender's memory
    kAhead = 6,     ///< as kAsk, but message `id` is on its way: nobody waits for a grant
    kCount = 7,     ///< nothing but what the letter counts
    kAskWhole = 8,  ///< as kAsk, of a message to another node that may lie on a device, so that it is not cut
  };
  std::uint32_t kind;
  std::uint32_t piece;  ///< bytes that follow this head in its record
  std::int64_t tag;
  std::uint64_t id;
  std::uint64_t bytes;        ///< of the whole message
  std::uint64_t address = 0;  ///< kAsk: where it lies in the sender's memory

  bool asks() const { return kind == kAsk || kind == kAskWhole; }
};
static_assert(sizeof(MessageHead) == 40);

/// A first-in first-out queue of records from one rank of a node to another: one writer, one reader.
/// Positions only grow; a record may wrap around the end.
class Ring {
 public:
  Ring(const Board& board, int from, int to)
      : line_(&board.ring_line(from, to)), data_(board.ring_data(from, to)), capacity_(board.ring_bytes()) {}

  /// Payload bytes that one record could carry now (0: not even a head), or fewer, but not fewer than `enough`.
  std::size_t space(std::size_t enough = SIZE_MAX) const;
  /// Needs space() >= head.piece; `writer`: of the messages to that rank.
  void put(const MessageHead& head, const std::byte* payload, SlotWriter& writer);

  bool has_news() const;                                   ///< whether there is a record; to be asked often
  bool peek(MessageHead& head) const;                      ///< the oldest record, if there is one
  void take(const MessageHead& head, std::byte* payload);  ///< removes it, copying its payload

 private:
  template <class Write>
  void copy_in(std::uint64_t at, const void* from, std::size_t bytes, Write write);
  void copy_out(std::uint64_t at, void* to, std::size_t bytes, bool past_caches) const;

  RingLine* line_;
  std::byte* data_;
  std::size_t capacity_;
};

}  // namespace accdp
