#include "thread_wire.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

using accdp::Wire;

Wire::Request ThreadWire::isend(accdp::ConstBytes data, int to, Tag tag, Form form) {
  if (mail_->leaves && is_of_collective(tag)) mail_->leaves(rank_, to, data);
  std::lock_guard lock(mail_->mutex);
  auto letter = std::make_shared<Mail::Letter>();
  letter->data = data;
  if (data.size() <= Mail::kCopied) {
    letter->copied.assign(data.begin(), data.end());
    letter->data = letter->copied;
  }
  auto& route = mail_->letters[{rank_, to, tag}];
  route.push_back(letter);
  ++mail_->lying(to, tag);
  if (tag == kCollective) mail_->most_kept = std::max(mail_->most_kept, route.size());
  sends_[++last_] = letter;
  count(data.size(), tag);
  return {last_, data.size(), to, true, false, form};
}

Wire::Request ThreadWire::irecv(accdp::Bytes data, int from, Tag tag, Form form) {
  std::lock_guard lock(mail_->mutex);
  receives_[{from, rank_, tag}].push_back({++last_, data});
  routes_[last_] = {from, rank_, tag};
  return {last_, data.size(), from, true, true, form};
}

bool ThreadWire::test(Request& request) {
  if (!request.pending) return true;
  if (request.is_receive && mail_->slow == rank_) std::this_thread::sleep_for(std::chrono::microseconds(200));
  std::lock_guard lock(mail_->mutex);
  if (!request.is_receive) {
    const Mail::Letter& letter = *sends_.at(request.raw);
    if (!letter.taken && letter.copied.size() != letter.data.size()) return false;
    sends_.erase(request.raw);
    request.pending = false;
    return true;
  }
  match(routes_.at(request.raw));
  auto found = received_.find(request.raw);
  if (found == received_.end()) return false;
  const std::size_t bytes = found->second;
  received_.erase(found);
  routes_.erase(request.raw);
  request.pending = false;
  if (request.form != Form::kUpTo && bytes != request.bytes)
    throw accdp::MismatchError("rank " + std::to_string(request.peer) + " sent " + std::to_string(bytes) +
                               " bytes, expected " + std::to_string(request.bytes));
  request.bytes = bytes;
  return true;
}

bool ThreadWire::take(Tag tag, int& from, std::vector<std::byte>& message) {
  if (mail_->lying(rank_, tag) == 0) return false;
  std::lock_guard lock(mail_->mutex);
  for (int rank = 0; rank < size_; ++rank) {
    auto found = mail_->letters.find({rank, rank_, tag});
    if (found == mail_->letters.end() || found->second.empty()) continue;
    Mail::Letter& letter = *found->second.front();
    if (tag == kFailure && !std::exchange(letter.seen, true)) continue;
    message.assign(letter.data.begin(), letter.data.end());
    letter.taken = true;
    found->second.pop_front();
    --mail_->lying(rank_, tag);
    from = rank;
    return true;
  }
  return false;
}

void ThreadWire::forget(Request& request) noexcept {
  if (!request.pending) return;
  request.pending = false;
  std::lock_guard lock(mail_->mutex);
  if (!request.is_receive) {
    // What was copied goes all the same. The memory of the rest has another use from now on.
    Mail::Letter& letter = *sends_.at(request.raw);
    if (letter.copied.size() != letter.data.size()) {
      letter.copied.assign(letter.data.size(), std::byte{0xEE});
      letter.data = letter.copied;
    }
    sends_.erase(request.raw);
    return;
  }
  std::erase_if(receives_[routes_.at(request.raw)], [&](const Posted& one) { return one.id == request.raw; });
  routes_.erase(request.raw);
}

void ThreadWire::match(const Mail::Route& route) {
  const auto [from, to, tag] = route;
  auto& posted = receives_[route];
  auto& waiting = mail_->letters[route];
  for (; !posted.empty() && !waiting.empty(); posted.pop_front(), waiting.pop_front(), --mail_->lying(to, tag)) {
    Mail::Letter& letter = *waiting.front();
    if (mail_->has_come && is_of_collective(tag) && !mail_->has_come(from, to, letter.data)) break;
    const std::size_t fits = std::min(letter.data.size(), posted.front().data.size());
    if (fits) std::memcpy(posted.front().data.data(), letter.data.data(), fits);
    std::size_t& received = received_[posted.front().id] = letter.data.size();
    if (mail_->arrives && is_of_collective(tag) && received <= posted.front().data.size())
      received = mail_->arrives(posted.front().data, received);
    letter.taken = true;
  }
}
