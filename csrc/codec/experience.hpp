#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
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

/// Seconds per byte of the last operations that went one way.
class Times {
 public:
  bool empty() const { return kept_.empty(); }
  std::size_t size() const { return kept_.size(); }
  /// Disturbances only add time, and may double it: of up to three the least counts. Of fifteen it is the fifth: of a
  /// way that is fast only while buffers are empty, one in five may look so.
  double typical() const { return typical_; }
  double fastest() const { return *std::min_element(kept_.begin(), kept_.end()); }
  void add(double seconds_per_byte);
  void forget_oldest();
  void clear() { kept_.clear(); }

 private:
  void settle();
  static constexpr std::size_t kKept = 15;
  std::vector<double> kept_;  // the newest last
  double typical_ = 0;
};

/// What is known of streams of like data over the same links: what codecs make of samples of it, and how long
/// operations took. What was seen counts more than what a model of the pipeline predicts, and by and by each way that
/// may be the best one is tried.
class Experience {
 public:
  /// A way to send the data: encoded, or as it is (codec: null).
  struct Option {
    Candidate candidate{};
    std::size_t slice_bytes = 0;  ///< of the samples that `cost` is from; 0: none yet
    bool helps = true;            ///< false: samples did not become smaller
    Times took = {};
    int idle = 0;  ///< operations since
  };
  /// An operation that was done as it was chosen, but for what it took.
  struct Trial {
    const CodecRow* codec;
    double bytes, ratio;
    double predicted_s;
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
  /// The operation that was chosen for last; its time may come after the next one was chosen for.
  Trial trial(const CodecRow* codec, double bytes, double ratio) const {
    return {codec, bytes, ratio, predicted_s_per_byte_ * bytes};
  }
  void note(const Trial& done, double seconds);
  bool has_seen(const CodecRow* codec) const;
  void forget_times();

  /// What trying codecs on samples may cost the next operation, as a part of it. One operation says that others like
  /// it will come: the second one pays for what the first one had no time for.
  double sampling_share() const { return operations_ == 1 ? kShareOfSecond : SamplingBudget::kShare; }
  /// Where nothing is left to try, that is looked at again by and by: another codec may be good for a link that
  /// changed.
  bool wants_samples() const { return operations_ >= next_samples_; }
  void has_all_samples() {
    next_samples_ = operations_ + kLaterEach;
    for (Option& option : codecs())  // by then data may be other data
      if (!option.helps) option.helps = true, option.slice_bytes = 0;
  }

  double saved_s = 0;               ///< of the time for samples that operations so far left over
  double transform_s_per_byte = 0;  ///< what differences to a reference take

 private:
  struct Estimate {
    double predicted, seconds;  // by the model; corrected by what was seen
    double hoped;               // of what was never seen: the same, if messages cost a thread little
  };
  bool is_tried(const Option& option) const { return option.slice_bytes > 0 && option.helps; }
  std::size_t index_of(const CodecRow* codec) const;
  std::vector<Estimate> estimates(const Journey& journey) const;
  int explored(const std::vector<Estimate>& all, std::size_t best, double bytes);

  static constexpr int kFirstTry = 5;
  // Prime, not to be in step with what a program repeats: say, operations in pairs, of which one takes longer.
  static constexpr int kLaterEach = 61;
  static constexpr int kForgetEach = 8 * kLaterEach;
  static constexpr std::size_t kEnough = 3;
  static constexpr double kShareOfSecond = 0.25, kWorthTrying = 1.3, kShareOfTries = 0.025, kLike = 0.1;

  std::vector<Option> options_;
  std::map<const CodecRow*, double> ratios_;
  UsualBias* usual_;
  int operations_ = 0, next_try_ = kFirstTry, next_samples_ = 0;
  double spent_s_ = 0;               // what operations so far took by the best way, as far as known
  double unlikely_s_ = 0;            // what tries of ways that nothing speaks for may have taken more
  double predicted_s_per_byte_ = 0;  // for the way that was chosen last
};

/// By what makes data and operation alike; the oldest are not kept for ever.
class Experiences {
 public:
  Experiences() = default;
  Experiences(const Experiences&) = delete;  // what it keeps knows where usual_ is
  /// Where codecs work, of which each has a usual bias of its own; and all else.
  using Key = std::pair<unsigned, std::uint64_t>;
  /// Of a key; where there is none yet, of the codecs that candidates() says. Stays valid until the next call.
  template <class Candidates>
  Experience& at(const Key& key, Candidates candidates) {
    if (const auto found = kept_.find(key); found != kept_.end()) return found->second;
    if (kept_.size() >= kMost) kept_.clear();
    return kept_.emplace(key, Experience(candidates(), &usual_[key.first])).first->second;
  }
  /// What was seen over a link of quite another speed says nothing.
  void link_is(double bytes_per_s);
  /// How long an operation took that another rank times may become known after the next one was chosen for.
  void expect(const Key& key, const Experience::Trial& done) { expected_ = {key, done}; }
  /// The last operation, if it was expected and is not forgotten; 0: nobody will know any more.
  void took(double seconds);
  std::uint64_t heard() const { return heard_; }  ///< of so many it became known

 private:
  static constexpr std::size_t kMost = 256;
  std::map<Key, Experience> kept_;
  std::map<unsigned, UsualBias> usual_;
  std::optional<std::pair<Key, Experience::Trial>> expected_;
  std::uint64_t heard_ = 0;
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
