#pragma once
#include <vector>

#include "coll/context.hpp"

namespace accdp {

/// Bytes of a piece of messages to so many ranks of other nodes, of which all together fill a slot.
std::size_t exchange_piece_bytes(std::size_t slot_bytes, std::size_t peers);

/// Long messages to and from several ranks of other nodes: a piece of each in every round, few rounds under way. Whole
/// messages that share a link would get their turns late and lose packets to one another.
class PiecewiseExchange {
 public:
  /// Of every pair of ranks both give the same bytes and pieces; in other orders, or to no rank, as they like.
  PiecewiseExchange(Context& context, std::vector<Incoming> incoming, std::vector<Outgoing> outgoing,
                    std::size_t piece_bytes);

  void await_round();  ///< the next one: its pieces have come; begins another
  void await_all();

 private:
  static constexpr std::size_t kAhead = 4;  // rounds under way
  void begin_round();

  Exchange exchange_;
  const std::vector<Incoming> incoming_;
  const std::vector<Outgoing> outgoing_;
  const std::size_t piece_bytes_;
  std::size_t rounds_ = 0, done_ = 0;
  std::vector<std::size_t> ends_;  // messages of all rounds up to and with that one
};

}  // namespace accdp
