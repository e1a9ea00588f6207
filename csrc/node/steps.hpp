#pragma once
#include "node/waiter.hpp"

namespace accdp {

/// The rhythm in which the ranks of a node hand each other chunks.
///
/// Every rank of the node goes through the same sequence of steps. In a step a rank may write its
/// slot, publishes the step, and then reads the slots of ranks that have published it too. Slots
/// alternate between two halves, so a slot may be written again two steps later, once every rank has
/// published the step in between: by publishing it a rank says that it no longer reads the step before.
/// Of short slots there are more, so who needs nothing from the others may publish and go on, up to
/// kMostAhead steps ahead of the slowest one.
class Steps {
 public:
  /// `counter` outlives this object: steps are counted over the whole life of the group.
  Steps(Board& board, std::uint64_t& counter, Patience& patience, Watch& watch)
      : board_(board), step_(counter), patience_(patience), watch_(watch) {}

  /// Begins the next step and gives room for `bytes` in the slot; `open_unwritten` for ranks that only read.
  std::byte* open(std::size_t bytes) {
    ++step_;
    wait_for_all(step_ - 1);
    return board_.take_slot(step_, bytes);
  }
  std::byte* open_short() {
    open_unwritten();
    return board_.short_slot(board_.local_rank(), step_);
  }
  void open_unwritten() {
    ++step_;
    if (step_ <= kMostAhead || all_published(step_ - kMostAhead)) return;
    // Not only for the one step that is needed: the others had better do several before this rank takes a core again.
    wait_for_all(step_ - kMostAhead / 2);
  }

  /// What is stored before is seen by whoever sees the step. Of two ranks that publish one, at least one sees the
  /// other's afterwards.
  void publish() {
    if (patience_.is_crowded) board_.note_core();
    board_.mine().step.store(step_, std::memory_order_release);
    board_.ring_others(kCollective);  // with a full fence
  }
  void await(int rank) {
    awaited_step_ = step_;
    awaited_rank_ = rank;
    wait([&] { return published(rank, awaited_step_); });
  }
  void await_all() { wait_for_all(step_); }

  /// The own short slot of a step with open(): room for a word about what is in the slot.
  std::byte* aside() { return board_.short_slot(board_.local_rank(), step_); }

  const std::byte* slot(int rank) const { return board_.slot(rank, step_); }  ///< of a rank that was awaited
  const std::byte* short_slot(int rank) const { return board_.short_slot(rank, step_); }
  /// Of a call's first step.
  void sign(const Signature& signature, std::uint64_t digest) {
    board_.signature(board_.local_rank(), step_) = signature;
    board_.digest(board_.local_rank(), step_) = digest;
  }
  const Signature& signature(int rank) const { return board_.signature(rank, step_); }
  std::uint64_t digest(int rank) const { return board_.digest(rank, step_); }
  bool has_published(int rank) const { return published(rank, step_); }
  std::uint64_t number() const { return step_; }  ///< of the step, in the life of the group

  /// Whether the wait going on needs something from that rank.
  bool waits_for(int rank) const {
    return rank != board_.local_rank() && (awaited_rank_ < 0 || awaited_rank_ == rank) &&
           !published(rank, awaited_step_);
  }

 private:
  bool published(int rank, std::uint64_t step) const {
    return board_.line(rank).step.load(std::memory_order_acquire) >= step;
  }
  void wait_for_all(std::uint64_t step) {
    awaited_step_ = step;
    awaited_rank_ = -1;
    wait([&] { return all_published(step); });
  }
  bool all_published(std::uint64_t step) const {
    for (int rank = 0; rank < board_.local_size(); ++rank)
      if (rank != board_.local_rank() && !published(rank, step)) return false;
    return true;
  }
  /// Whether a rank that this one waits for needs the core that this one is on.
  bool is_in_the_way() const {
    const std::int32_t core = board_.mine().core.load(std::memory_order_relaxed);
    for (int rank = 0; rank < board_.local_size(); ++rank)
      if (waits_for(rank) && board_.line(rank).core.load(std::memory_order_relaxed) == core) return true;
    return false;
  }
  template <class Ready>
  void wait(Ready ready) {
    if (!patience_.is_crowded) return wait_until(board_, kCollective, patience_, ready, watch_);
    wait_beside(board_, patience_, ready, [&] { return is_in_the_way(); }, watch_);
  }

  Board& board_;
  std::uint64_t& step_;
  Patience& patience_;
  Watch& watch_;
  std::uint64_t awaited_step_ = 0;
  int awaited_rank_ = -1;  // -1: all
};

}  // namespace accdp
