#pragma once
#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "mpi/wire.hpp"

/// The messages between the threads of a test, each of which plays a rank.
///
/// As strict as MPI may be: messages between two ranks with one tag arrive in order; a short one is copied when it is
/// sent, a long one is read from the sender's memory when the receiver takes it, so that the address sanitizer sees a
/// buffer that was let go too early. One that its sender gave up comes all the same, with other bytes, and
/// of a failure only the second look finds word: the first may be what lets MPI move it.
class Mail {
 public:
  static constexpr std::size_t kCopied = 8 << 10;
  struct Letter {
    accdp::ConstBytes data;
    std::vector<std::byte> copied;
    bool taken = false, seen = false;
  };
  using Route = std::tuple<int, int, int>;  // from, to, tag

  std::mutex mutex;
  std::map<Route, std::deque<std::shared_ptr<Letter>>> letters;
  int slow = -1;  ///< a rank that seldom looks at what has come
  /// Where set: what a message of a collective becomes on its way, a result too, in the receiver's room; returns its
  /// length then.
  std::function<std::size_t(accdp::Bytes room, std::size_t bytes)> arrives;
  /// Where set: called with each message of a collective before it is on its way, by the thread that sends it.
  std::function<void(int from, int to, accdp::ConstBytes message)> leaves;
  /// Where set: whether a message of a collective has come as far as its receiver; asked until it has, under the mutex.
  std::function<bool(int from, int to, accdp::ConstBytes message)> has_come;
  std::size_t most_kept = 0;  ///< of collectives: letters of one route that lay there at once
};

/// One rank's end of it.
class ThreadWire : public accdp::Wire {
 public:
  ThreadWire(std::shared_ptr<Mail> mail, int rank, int size) : mail_(std::move(mail)), rank_(rank), size_(size) {}

  Request isend(accdp::ConstBytes data, int to, Tag tag, Form form = Form::kWhole) override {
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
    if (tag == kCollective) mail_->most_kept = std::max(mail_->most_kept, route.size());
    sends_[++last_] = letter;
    count(data.size(), tag);
    return {last_, data.size(), to, true, false, form};
  }

  Request irecv(accdp::Bytes data, int from, Tag tag, Form form = Form::kWhole) override {
    std::lock_guard lock(mail_->mutex);
    receives_[{from, rank_, tag}].push_back({++last_, data});
    routes_[last_] = {from, rank_, tag};
    return {last_, data.size(), from, true, true, form};
  }

  Request start(const NativeCall&) override { throw accdp::UsageError("threads have no collectives of their own"); }
  bool has_native(accdp::Datatype, accdp::ReduceOp) const override { return false; }

  bool test(Request& request) override {
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

  bool take(Tag tag, int& from, std::vector<std::byte>& message) override {
    std::lock_guard lock(mail_->mutex);
    for (int rank = 0; rank < size_; ++rank) {
      auto found = mail_->letters.find({rank, rank_, tag});
      if (found == mail_->letters.end() || found->second.empty()) continue;
      Mail::Letter& letter = *found->second.front();
      if (tag == kFailure && !std::exchange(letter.seen, true)) continue;
      message.assign(letter.data.begin(), letter.data.end());
      letter.taken = true;
      found->second.pop_front();
      from = rank;
      return true;
    }
    return false;
  }

  void abandon(Request& request) noexcept override {
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

  void retire(int) noexcept override {}  // its mail goes when the last one that has it does
  void worsen(Health) noexcept override {}
  bool late_ranks_live() const noexcept override { return true; }
  Health health() const noexcept override { return kWell; }

 private:
  struct Posted {
    std::uint64_t id;
    accdp::Bytes data;
  };

  static bool is_of_collective(int tag) { return tag == kCollective || tag == kResult; }

  void match(const Mail::Route& route) {
    const auto [from, to, tag] = route;
    auto& posted = receives_[route];
    auto& waiting = mail_->letters[route];
    for (; !posted.empty() && !waiting.empty(); posted.pop_front(), waiting.pop_front()) {
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

  std::shared_ptr<Mail> mail_;
  int rank_, size_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::shared_ptr<Mail::Letter>> sends_;
  std::map<Mail::Route, std::deque<Posted>> receives_;
  std::map<std::uint64_t, Mail::Route> routes_;    // of receives
  std::map<std::uint64_t, std::size_t> received_;  // bytes that came
};
