#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
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
  /// How many of these are for a rank, with a tag; may be read without the mutex, by who looks for some all the time.
  std::atomic<int>& lying(int to, int tag) { return lying_[to % kMostRanks * kTags + std::min(tag, kTags - 1)]; }
  int slow = -1;  ///< a rank that seldom looks at what has come
  /// Where set: what a message of a collective becomes on its way, a result too, in the receiver's room; returns its
  /// length then.
  std::function<std::size_t(accdp::Bytes room, std::size_t bytes)> arrives;
  /// Where set: called with each message of a collective before it is on its way, by the thread that sends it.
  std::function<void(int from, int to, accdp::ConstBytes message)> leaves;
  /// Where set: whether a message of a collective has come as far as its receiver; asked until it has, under the mutex.
  std::function<bool(int from, int to, accdp::ConstBytes message)> has_come;
  std::size_t most_kept = 0;  ///< of collectives: letters of one route that lay there at once

 private:
  static constexpr int kMostRanks = 64, kTags = 32;  // what has another's place is looked for under the mutex
  std::array<std::atomic<int>, std::size_t{kMostRanks} * kTags> lying_{};
};

/// One rank's end of it.
class ThreadWire : public accdp::Wire {
 public:
  ThreadWire(std::shared_ptr<Mail> mail, int rank, int size) : mail_(std::move(mail)), rank_(rank), size_(size) {}

  Request isend(accdp::ConstBytes data, int to, Tag tag, Form form = Form::kWhole) override;

  Request irecv(accdp::Bytes data, int from, Tag tag, Form form = Form::kWhole) override;

  Request start(const NativeCall&) override { throw accdp::UsageError("threads have no collectives of their own"); }
  bool has_native(accdp::Datatype, accdp::ReduceOp) const override { return false; }

  bool moves_by_itself() const noexcept override { return true; }
  bool test(Request& request) override;

  bool take(Tag tag, int& from, std::vector<std::byte>& message) override;

  void forget(Request& request) noexcept override;

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

  void match(const Mail::Route& route);

  std::shared_ptr<Mail> mail_;
  int rank_, size_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::shared_ptr<Mail::Letter>> sends_;
  std::map<Mail::Route, std::deque<Posted>> receives_;
  std::map<std::uint64_t, Mail::Route> routes_;    // of receives
  std::map<std::uint64_t, std::size_t> received_;  // bytes that came
};
