#pragma once
#include <cstddef>
#include <deque>

#include "coll/context.hpp"

namespace accdp {

/// Which of the frames that one node sends another have a receipt, a byte that goes back. Both ends know.
struct ReceiptRule {
  std::size_t frames = 0;      ///< in all
  bool measures_link = false;  ///< whether the sender wants to know when they come, and not only not to run ahead
  std::size_t most_ahead = kMostAhead;  ///< frames that may be under way without a receipt, at least so many

  static constexpr std::size_t kMostAhead = 8, kEvery = 4, kEachOfFirst = 16;
  /// nth: from 1.
  bool has(std::size_t nth) const {
    if (measures_link && nth <= kEachOfFirst) return true;
    return nth % kEvery == 0 && (measures_link || nth + most_ahead - kEvery < frames);
  }
};

/// What a sender knows of its frames for one receiver. MPI sends short messages whether somebody takes them or not, and
/// keeps them at the receiver: so many frames and no more are sent that have no receipt yet.
class FramesUnderWay {
 public:
  /// receiver: rank in the group.
  FramesUnderWay(Context& context, int receiver, ReceiptRule rule) : c_(context), receiver_(receiver), rule_(rule) {}

  void make_room() {
    while (sent_ - arrived_ >= rule_.most_ahead) await_receipt();
  }
  void sent(std::size_t bytes);
  /// Takes the receipts that have come.
  void look();
  void await_receipt();
  void await_all() {
    while (awaited() > 0) await_receipt();
  }
  std::size_t awaited() const { return awaited_.size(); }
  void abandon() noexcept { c_.abandon(request_); }

 private:
  struct Receipt {
    std::size_t frames, bytes;  // up to it
  };
  void ask();
  void count();

  Context& c_;
  const int receiver_;
  const ReceiptRule rule_;
  std::deque<Receipt> awaited_;
  std::size_t sent_ = 0, sent_bytes_ = 0, arrived_ = 0;
  Wire::Request request_;
  Bytes token_;
};

/// A receiver's count of the frames of one sender.
class FramesTaken {
 public:
  FramesTaken(Context& context, int sender, ReceiptRule rule) : c_(context), sender_(sender), rule_(rule) {}
  /// Another one has come: its receipt, if it has one, is begun.
  void count() {
    if (!rule_.has(++taken_)) return;
    receipts_.push_back(c_.wire().isend(kToken, sender_, Wire::kReceipt));
    while (!receipts_.empty() && c_.wire().test(receipts_.front())) receipts_.pop_front();
  }
  void await_all() {
    for (Wire::Request& receipt : receipts_) c_.wait(receipt);
  }
  void abandon() noexcept {
    for (Wire::Request& receipt : receipts_) c_.abandon(receipt);
  }

 private:
  static constexpr std::byte kByte{1};
  static constexpr ConstBytes kToken{&kByte, 1};

  Context& c_;
  const int sender_;
  const ReceiptRule rule_;
  std::size_t taken_ = 0;
  std::deque<Wire::Request> receipts_;  // under way
};

}  // namespace accdp
