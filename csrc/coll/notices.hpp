#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "node/board.hpp"

namespace accdp {

/// A place beside MPI where a rank leaves word for those of other nodes that may be late, or dead: MPI crashes or
/// blocks when it sends to the dead. One text per group, the last one that was left.
class Notices {
 public:
  virtual ~Notices() = default;
  /// Both may throw, and may block for long where who keeps the notices does not answer.
  virtual void leave(const std::string& text) = 0;
  virtual std::string find() = 0;  ///< "" if there is none
};

/// Starts what other nodes are told of a failure; the text follows.
struct NoticeHead {
  FailureKind kind;
  std::uint64_t disputed;  ///< number of the collective that ranks disagree on, else 0
};
std::string notice_of(FailureKind kind, std::uint64_t disputed, const std::string& text);

/// The same with a limit: each call is made on a thread of its own, and one that fails or takes too long is the last.
/// None throws: who cannot be told or asked is as well off as without notices, and has a deadline.
class LimitedNotices {
 public:
  /// Not while others use the object.
  void set(std::shared_ptr<Notices> notices) { notices_ = std::move(notices); }
  explicit operator bool() const { return notices_ && !gave_up_; }
  void leave(const std::string& text) noexcept;
  std::string find() noexcept;

 private:
  template <class Call>
  std::string within_limit(Call call) noexcept;

  std::shared_ptr<Notices> notices_;
  std::atomic<bool> gave_up_{false};
};

}  // namespace accdp
