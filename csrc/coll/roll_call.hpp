#pragma once
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include "base/keep.hpp"
#include "mpi/wire.hpp"
#include "node/board.hpp"

namespace accdp {

/// What leaders of other nodes ask about this rank's calls, and what it asks about theirs: of ranks that disagree one
/// may wait for another that has gone ahead, or that waits for somebody else. Any thread.
class RollCall {
 public:
  /// So many calls in a row may go ahead between nodes; the next one waits for all ranks. It bounds what a rank that is
  /// late has to hold: each carries at most kMostCarriedBytes.
  static constexpr int kMostCallsAhead = 16;

  /// wire: null where there are no other nodes.
  RollCall(Wire* wire, int ranks) : wire_(wire), others_(ranks) {}

  void begin(const Signature& call);  ///< of this rank; the next in sequence
  Signature called(std::uint64_t sequence) const;
  void ask(int rank, std::uint64_t sequence);  ///< once, however often it is called
  /// What that rank says it called as #sequence. It may not have said yet: it answers once it has begun that call.
  std::optional<Signature> answer(int rank, std::uint64_t sequence) const;
  void look();           ///< at what was asked and answered
  void keep_letters() {  ///< that may still be on their way at the end
    if (!letters_.empty()) keep_for_ever(std::move(letters_));
  }

 private:
  struct Other {
    std::uint64_t asked = 0;  ///< by this rank, last
    std::uint64_t asks = 0;   ///< of this rank, about a call that it has not begun; 0: nothing
    std::optional<Signature> answer;
  };
  struct Letter {  // a call's number; of an answer with the call behind it
    Wire::Request request;
    std::vector<std::byte> text;
  };
  Signature recalled(std::uint64_t sequence) const { return calls_[sequence % kRemembered]; }
  void tell(int rank, std::uint64_t sequence);
  void hear(int rank, std::uint64_t sequence, const std::byte* text);
  void send(int rank, ConstBytes text);

  // Nobody is farther ahead of a rank that waits than that; and one call more is the one that waits for all.
  static constexpr std::uint64_t kRemembered = 2 * kMostCallsAhead;
  Wire* wire_;
  mutable std::mutex mutex_;
  Signature calls_[kRemembered];
  std::uint64_t latest_ = 0;
  std::vector<Other> others_;
  bool is_asked_ahead_ = false;  // for a call that this rank has not begun
  std::list<Letter> letters_;    // on their way
};

}  // namespace accdp
