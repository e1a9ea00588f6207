#pragma once
#include <algorithm>
#include <deque>

#include "base/deadline.hpp"

namespace accdp {

/// The speed of the link to the next node, as receipts for frames tell it.
class LinkMeter {
 public:
  static constexpr double kLatencyS = 50e-6;  ///< a message's, over sockets

  bool is_known() const { return bytes_per_s_ > 0; }
  /// Before anything was measured: a link on which compressing neither wins nor loses much.
  double bytes_per_s() const { return is_known() ? bytes_per_s_ : 1.25e9; }

  void begin() { marks_.clear(), sent_ = 0; }
  void sent(std::size_t bytes) { sent_ += bytes; }
  /// The next node has got so many bytes of what was sent since begin(). What lay ready for the link when the last
  /// receipt came tells whether the link or this rank sets the pace.
  void received(std::size_t bytes) {
    marks_.push_back({Clock::now(), static_cast<double>(bytes), sent_ - bytes >= kBacklog});
    if (marks_.size() > kWindow) marks_.pop_front();
    const Mark &first = marks_.front(), &last = marks_.back();
    const double moved = last.bytes - first.bytes;
    if (moved < kEnough) return;
    const double speed = moved / std::chrono::duration<double>(last.at - first.at).count();
    const auto waiting = std::count_if(marks_.begin(), marks_.end(), [](const Mark& mark) { return mark.backlog; });
    if (4 * waiting >= 3 * static_cast<long>(marks_.size()))
      bytes_per_s_ = is_known() ? 0.75 * bytes_per_s_ + 0.25 * speed : speed;
    else
      bytes_per_s_ = std::max(bytes_per_s_, speed);  // at least so much
  }

 private:
  struct Mark {
    Clock::time_point at;
    double bytes;
    bool backlog;
  };
  static constexpr std::size_t kWindow = 32;
  static constexpr std::size_t kBacklog = 64 << 10;
  static constexpr double kEnough = 512 << 10;

  double bytes_per_s_ = 0;
  std::size_t sent_ = 0;
  std::deque<Mark> marks_;
};

/// How much longer broadcasts took than predicted, encoded and plain ones apart. The prediction knows nothing of cores
/// that are shared: where encoding takes them from the messages, a codec that ought to win loses, and this remembers
/// it.
class Experience {
 public:
  double slowdown(bool encoded) const { return factor_[encoded]; }
  void note(bool encoded, double predicted_s, double took_s) {
    const double seen = std::clamp(took_s / std::max(predicted_s, 1e-9), 0.5, 8.0);
    factor_[encoded] = 0.5 * factor_[encoded] + 0.5 * seen;
    // What was not tried may have become better meanwhile.
    factor_[!encoded] += kForgets * (1 - factor_[!encoded]);
  }

 private:
  static constexpr double kForgets = 0.01;
  double factor_[2] = {1, 1};
};

}  // namespace accdp
