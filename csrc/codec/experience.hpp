#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "codec/survey.hpp"

namespace accdp {

/// By how much the model of the pipeline is usually off for a way to send, at a size: what is common to all data, such
/// as cores that are busy otherwise.
class UsualBias {
 public:
  /// Seconds that were seen over seconds that were predicted; 0: not known.
  double of(const CodecRow* codec, double bytes) const;
  void note(const CodecRow* codec, double bytes, double bias);

 private:
  static std::pair<const CodecRow*, int> key_of(const CodecRow* codec, double bytes);
  std::map<std::pair<const CodecRow*, int>, double> biases_;
};

/// What is known of streams of like data over the same links: what codecs make of samples of it, and how long
/// operations took. What was seen counts more than what a model of the pipeline predicts, and by and by each way that
/// may be the best one is tried.
class Experience {
 public:
  /// A way to send the data: encoded, or as it is (codec: null).
  struct Option {
    Candidate candidate{};
    std::size_t slice_bytes = 0;    ///< of the samples that `cost` is from; 0: none yet
    bool helps = true;              ///< false: samples did not become smaller
    std::vector<double> took = {};  ///< seconds per byte of the last operations, the newest last
    int idle = 0;                   ///< timed operations since
  };

  /// `usual`: of all data, null where nothing is known of others; lives longer than this.
  explicit Experience(std::vector<Candidate> candidates = {}, UsualBias* usual = nullptr);

  /// All but the first, which is to send the data as it is.
  std::span<Option> codecs() { return std::span(options_).subspan(1); }

  /// Of this operation's way. `journey` is the operation, whose bytes may be others than before.
  const CodecRow* choose(const Journey& journey);
  /// The same by prediction alone.
  const CodecRow* predict(const Journey& journey) const;
  /// Seconds of the best way.
  double best_seconds(const Journey& journey) const;
  /// Whether the operation that was chosen for should be timed: each one at first, and after another way became the
  /// best, which may be so only until buffers on the way are full; later some, since it costs a message.
  bool wants_time() const {
    const int each = since_change_ <= kLearning ? 1 : since_change_ <= kSettled ? kTimeEach : kTimeEachSettled;
    return operations_ % each == 0 || explores_;
  }
  /// An operation was done so.
  void note(const CodecRow* codec, double seconds, double bytes, double ratio);
  bool has_seen(const CodecRow* codec) const;
  void forget_times();

  /// What trying codecs on samples may cost the next operation, as a part of it. One operation says that others like
  /// it will come: the second one pays for what the first one had no time for.
  double sampling_share() const { return operations_ == 1 ? kShareOfSecond : SamplingBudget::kShare; }

  double saved_s = 0;               ///< of the time for samples that operations so far left over
  double transform_s_per_byte = 0;  ///< what differences to a reference take

 private:
  struct Estimate {
    double predicted, seconds;  // by the model; corrected by what was seen
  };
  bool is_tried(const Option& option) const { return option.slice_bytes > 0 && option.helps; }
  std::size_t index_of(const CodecRow* codec) const;
  std::vector<Estimate> estimates(const Journey& journey) const;
  int explored(const std::vector<Estimate>& all, std::size_t best, double bytes);

  static constexpr int kLearning = 16, kFirstTry = 5, kSettled = 128;
  // Prime, not to be in step with what a program repeats: say, operations in pairs, of which one takes longer.
  static constexpr int kLaterEach = 61, kTimeEach = 7, kTimeEachSettled = 31;
  static constexpr std::size_t kKept = 9, kEnough = 3;
  static constexpr double kShareOfSecond = 0.25, kWorthTrying = 1.3, kShareOfTries = 0.025, kLike = 0.1;

  std::vector<Option> options_;
  std::map<const CodecRow*, double> ratios_;
  UsualBias* usual_;
  int operations_ = 0, next_try_ = kFirstTry;
  std::size_t favourite_ = 0;        // among options_: the best as far as known
  int since_change_ = 0;             // operations since it is
  double spent_s_ = 0;               // what operations so far took by the best way, as far as known
  double unlikely_s_ = 0;            // what tries of ways that nothing speaks for may have taken more
  double predicted_s_per_byte_ = 0;  // for the way that was chosen last
  bool explores_ = false;
};

/// By what makes data and operation alike; the oldest are not kept for ever.
class Experiences {
 public:
  Experiences() = default;
  Experiences(const Experiences&) = delete;  // what it keeps knows where usual_ is
  /// Of a key; where there is none yet, of the codecs that candidates() says. Stays valid until the next call. place:
  /// where codecs work, of which each has a usual bias of its own.
  template <class Candidates>
  Experience& at(std::uint64_t key, unsigned place, Candidates candidates) {
    const Key whole{place, key};
    if (const auto found = kept_.find(whole); found != kept_.end()) return found->second;
    if (kept_.size() >= kMost) kept_.clear();
    return kept_.emplace(whole, Experience(candidates(), &usual_[place])).first->second;
  }
  /// What was seen over a link of quite another speed says nothing.
  void link_is(double bytes_per_s);

 private:
  static constexpr std::size_t kMost = 256;
  using Key = std::pair<unsigned, std::uint64_t>;
  std::map<Key, Experience> kept_;
  std::map<unsigned, UsualBias> usual_;
  double link_bytes_per_s_ = 0;
};

/// Of compressed allreduces, by all that a choice depends on but the data.
class KindsOfSums {
 public:
  Experiences& of(std::uint64_t kind) {
    if (kept_.size() >= kMost && !kept_.contains(kind)) kept_.clear();
    return kept_[kind];
  }

 private:
  static constexpr std::size_t kMost = 256;
  std::map<std::uint64_t, Experiences> kept_;
};

}  // namespace accdp
