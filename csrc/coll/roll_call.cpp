#include "coll/roll_call.hpp"

#include <cstring>
#include <span>
#include <string>

#include "base/error.hpp"

namespace accdp {

void RollCall::begin(const Signature& call) {
  const std::lock_guard lock(mutex_);
  latest_ = call.sequence;
  calls_[latest_ % kRemembered] = call;
  if (!is_asked_ahead_) return;
  is_asked_ahead_ = false;
  for (std::size_t rank = 0; rank < others_.size(); ++rank) {
    const std::uint64_t asks = others_[rank].asks;
    if (asks && asks <= latest_) tell(static_cast<int>(rank), asks);
    is_asked_ahead_ |= asks > latest_;
  }
}

Signature RollCall::called(std::uint64_t sequence) const {
  const std::lock_guard lock(mutex_);
  return recalled(sequence);
}

void RollCall::ask(int rank, std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  Other& other = others_[rank];
  if (other.asked == sequence) return;
  other.asked = sequence;
  other.answer.reset();
  send(rank, std::as_bytes(std::span(&sequence, 1)));
}

std::optional<Signature> RollCall::answer(int rank, std::uint64_t sequence) const {
  const std::lock_guard lock(mutex_);
  const Other& other = others_[rank];
  return other.asked == sequence ? other.answer : std::nullopt;
}

void RollCall::look() {
  if (!wire_) return;
  const std::lock_guard lock(mutex_);
  int from;
  std::vector<std::byte> text;
  while (wire_->take(Wire::kRollCall, from, text)) {
    std::uint64_t sequence;
    if (text.size() != sizeof sequence && text.size() != sizeof sequence + sizeof(Signature))
      throw MismatchError("rank " + std::to_string(from) + " sent " + std::to_string(text.size()) +
                          " bytes about a call, expected its number, or that and the call");
    std::memcpy(&sequence, text.data(), sizeof sequence);
    if (text.size() > sizeof sequence) {
      hear(from, sequence, text.data() + sizeof sequence);
    } else if (sequence <= latest_) {
      tell(from, sequence);
    } else {
      others_[from].asks = sequence;
      is_asked_ahead_ = true;
    }
  }
  std::erase_if(letters_, [&](Letter& letter) { return wire_->test(letter.request); });
}

void RollCall::hear(int rank, std::uint64_t sequence, const std::byte* text) {
  Signature call;
  std::memcpy(&call, text, sizeof call);
  if (others_[rank].asked == sequence) others_[rank].answer = call;
}

void RollCall::tell(int rank, std::uint64_t sequence) {
  others_[rank].asks = 0;
  const Signature call = recalled(sequence);
  std::byte text[sizeof sequence + sizeof call];
  std::memcpy(text, &sequence, sizeof sequence);
  std::memcpy(text + sizeof sequence, &call, sizeof call);
  send(rank, text);
}

void RollCall::send(int rank, ConstBytes text) {
  Letter& letter = letters_.emplace_back();
  letter.text.assign(text.begin(), text.end());
  letter.request = wire_->isend(letter.text, rank, Wire::kRollCall);
}

}  // namespace accdp
