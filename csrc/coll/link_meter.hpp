#pragma once
#include <algorithm>
#include <deque>

#include "base/deadline.hpp"

namespace accdp {

/// The speed of the link to the next node, as receipts for frames tell it, and how long a message takes besides.
/// Times are given, so that this is pure arithmetic.
class LinkMeter {
 public:
  using Time = Clock::time_point;

  /// A direct stream waits for nothing but the link and the threads that move its bytes. In an encoded one the decoder
  /// of the next node may set the pace, so what it shows is only believed where it is fast, or the first to show any.
  enum class Stream { kDirect, kEncoded };

  bool is_known() const { return bytes_per_s_ > 0 || guesses_ >= kGuesses; }
  /// Before anything was measured: a link on which compressing neither wins nor loses much.
  double bytes_per_s() const { return bytes_per_s_ > 0 ? bytes_per_s_ : guess_ > 0 ? guess_ : kUsualBytesPerS; }
  double latency_s() const { return latency_s_; }

  /// What was measured otherwise (measure.hpp), by all ranks together, counts where nothing else is known.
  void told(double bytes_per_s, double latency_s) {
    was_told_ = true;
    if (is_known()) return;
    bytes_per_s_ = bytes_per_s;
    latency_s_ = std::clamp(latency_s, kLeastLatencyS, kMostLatencyS);
  }

  bool was_told() const { return was_told_; }  ///< equal on all ranks

  /// Whether a stream should be measured. A receipt at the end costs a message's way, so short streams are measured
  /// only while nothing is known.
  bool wants_receipts(std::size_t frames, std::size_t bytes) const {
    return frames >= kLongStream || (!is_known() && bytes >= kWorthAGuess);
  }

  void begin(Stream kind) {
    marks_.clear();
    kind_ = kind;
    sent_ = 0;
    before_ = bytes_per_s_;
    is_measured_ = false;
  }
  void sent(std::size_t bytes, Time now) {
    if (sent_ == 0) {
      first_sent_ = now;
      marks_.push_back({now, 0, true});
    }
    sent_ += bytes;
  }
  /// The next node has got so many bytes of what was sent since begin(). What lay ready for the link when the last
  /// receipt came tells whether the link or this rank sets the pace. Receipts that come together, because this rank
  /// had no core for a while, must not look like a fast link: hence the long window, from the first byte on.
  void received(std::size_t bytes, Time now) {
    marks_.push_back({now, static_cast<double>(bytes), sent_ - bytes >= kBacklog});
    if (marks_.size() > kWindow) marks_.pop_front();
    const Mark &first = marks_.front(), &last = marks_.back();
    const double moved = last.bytes - first.bytes;
    if (moved < kEnough || last.at <= first.at) return;
    is_measured_ = true;
    const double speed = moved / seconds(last.at - first.at);
    const double weight = std::min(static_cast<double>(bytes) / kConvinces, 1.0);
    const auto waiting = std::count_if(marks_.begin(), marks_.end(), [](const Mark& mark) { return mark.backlog; });
    const bool link_sets_pace = 4 * waiting >= 3 * static_cast<long>(marks_.size());
    if (!(before_ > 0))
      bytes_per_s_ = speed;
    else if (link_sets_pace && (kind_ == Stream::kDirect || speed > before_))
      bytes_per_s_ = (1 - weight) * before_ + weight * speed;
    else
      bytes_per_s_ = std::max(before_, speed);  // at least so much
  }
  /// All has been received. A stream too short for the above gives a guess.
  void end(Time now) {
    if (is_measured_ || kind_ != Stream::kDirect || sent_ < kWorthAGuess) return;
    const double took = seconds(now - first_sent_);
    const double speed = static_cast<double>(sent_) / std::max({took - 2 * latency_s_, took / 4, 1e-9});
    guess_ = guess_ > 0 ? 0.75 * guess_ + 0.25 * speed : speed;
    ++guesses_;
  }
  /// Two nodes have sent each other a small message. Follows the median, because ranks come late or find it there
  /// already; within limits, because all may do so always.
  void note_exchange(double seconds) {
    latency_s_ = std::clamp(latency_s_ * (seconds > latency_s_ ? 1.05 : 1 / 1.05), kLeastLatencyS, kMostLatencyS);
  }

  static constexpr double kUsualBytesPerS = 1.25e9;
  static constexpr double kLatencyS = 50e-6;  ///< a message's, over sockets, before any was measured

 private:
  struct Mark {
    Time at;
    double bytes;
    bool backlog;
  };
  static double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

  static constexpr std::size_t kLongStream = 8, kWorthAGuess = 64 << 10, kWindow = 128, kBacklog = 64 << 10;
  static constexpr double kEnough = 512 << 10, kConvinces = 16 << 20;
  static constexpr double kLeastLatencyS = 10e-6, kMostLatencyS = 300e-6;
  static constexpr int kGuesses = 8;

  double bytes_per_s_ = 0, before_ = 0, guess_ = 0, latency_s_ = kLatencyS;
  int guesses_ = 0;
  Stream kind_ = Stream::kDirect;
  bool is_measured_ = false, was_told_ = false;
  std::size_t sent_ = 0;
  Time first_sent_;
  std::deque<Mark> marks_;
};

/// What a rank's own thread spends on a byte that it sends or receives: MPI moves nothing by itself, and what it copies
/// and asks the kernel to do takes time from encoding. From the processor time of streams that go as they are.
class MessageCost {
 public:
  double seconds_per_byte() const { return seconds_per_byte_; }
  /// Of a stream that took `whole_s` on a node whose thread has so many cores.
  void note(double processor_s, double whole_s, double bytes, double cores) {
    if (bytes < kEnough) return;  // an operation's fixed costs would count as bytes
    const double seen = std::clamp(processor_s / bytes, 0.05e-9, 3e-9);
    // Where frames come fast, who waits looks for messages all the time; where they come far between, it sleeps, and
    // the kernel moves them one by one. Where a thread mostly waited, a byte needs no more than that.
    if (processor_s < kBusy * std::min(cores, 1.0) * whole_s) {
      seconds_per_byte_ = std::min(seconds_per_byte_, seen);
      return;
    }
    seconds_per_byte_ = is_known_ ? 0.5 * seconds_per_byte_ + 0.5 * seen : seen;
    is_known_ = true;
  }

 private:
  static constexpr double kEnough = 4 << 20, kBusy = 0.7;
  double seconds_per_byte_ = 0.4e-9;
  bool is_known_ = false;
};

}  // namespace accdp
