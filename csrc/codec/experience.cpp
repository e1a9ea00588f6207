#include "codec/experience.hpp"

#include <algorithm>
#include <cmath>

namespace accdp {
namespace {

// A thread that only sends pays for what the kernel does with each message; one that encodes in between pays less.
constexpr double kLeastMessageSecondsPerByte = 0.2e-9;
constexpr double kAsPredicted = 0.95;

}  // namespace

void Times::add(double seconds_per_byte) {
  kept_.push_back(seconds_per_byte);
  if (kept_.size() > kKept) kept_.erase(kept_.begin());
  settle();
}

void Times::forget_oldest() {
  kept_.erase(kept_.begin());
  if (!kept_.empty()) settle();
}

void Times::settle() {
  std::vector<double> sorted = kept_;
  const auto low = sorted.begin() + static_cast<long>((sorted.size() - 1) / 3);
  std::nth_element(sorted.begin(), low, sorted.end());
  typical_ = *low;
}

std::pair<const CodecRow*, int> UsualBias::key_of(const CodecRow* codec, double bytes) {
  return {codec, static_cast<int>(std::lround(std::log2(std::max(bytes, 1.0)) / 2))};
}

double UsualBias::of(const CodecRow* codec, double bytes) const {
  const auto found = biases_.find(key_of(codec, bytes));
  return found == biases_.end() ? 0 : found->second;
}

void UsualBias::note(const CodecRow* codec, double bytes, double bias) {
  const auto [found, is_first] = biases_.try_emplace(key_of(codec, bytes), bias);
  if (!is_first) found->second = std::sqrt(found->second * bias);
}

Experience::Experience(std::vector<Candidate> candidates, UsualBias* usual) : usual_(usual) {
  options_.push_back({.slice_bytes = 1});
  for (const Candidate& candidate : candidates) options_.push_back({candidate});
}

std::vector<Experience::Estimate> Experience::estimates(const Journey& journey) const {
  std::vector<Estimate> all;
  double bias = 1, least = 0;
  Journey eased = journey;
  eased.message_s_per_byte = std::min(journey.message_s_per_byte, kLeastMessageSecondsPerByte);
  for (const Option& option : options_) {
    Estimate one{0, 0, 0};
    if (is_tried(option)) {
      const auto by_model = [&](const Journey& j) {
        return option.candidate.codec ? encoded_seconds(j, option.candidate.cost) : plain_seconds(j);
      };
      one.predicted = by_model(journey);
      one.hoped = by_model(eased);
      one.seconds = option.took.empty() ? 0 : option.took.typical() * journey.bytes;
    }
    if (one.seconds > 0 && (least == 0 || one.seconds < least)) {
      least = one.seconds;
      bias = one.seconds / one.predicted;
    }
    all.push_back(one);
  }
  // What the model leaves out may hold for all ways alike, or for the one that was seen only: half way between.
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].seconds > 0) continue;
    const double usual = usual_ ? usual_->of(options_[i].candidate.codec, journey.bytes) : 0;
    // A codec that was faster than predicted was so for the sake of its data; what is slow may be so for the machine's.
    // To data that goes as it is, all data is alike.
    const bool is_plain = !options_[i].candidate.codec;
    const double known = is_plain ? usual : std::max(usual, 1.0) * std::min(std::sqrt(bias), 1.0);
    all[i].seconds = all[i].predicted * (usual > 0 ? known : std::sqrt(bias));
    // Where other data has shown that messages cost what they seem to, there is nothing to hope for.
    const bool is_refuted = usual >= kAsPredicted || all[i].predicted == 0;
    all[i].hoped = all[i].seconds * (is_refuted ? 1 : all[i].hoped / all[i].predicted);
  }
  return all;
}

/// Of the ways that may be better than the best known one, which has been seen too little, or was as fast once; else
/// one that was never seen and is not too dear to try; -1: none. Tries are few, and each way has its turn: one of which
/// too much is predicted must not take those of one that was disturbed, or never seen.
int Experience::explored(const std::vector<Estimate>& all, std::size_t best, double bytes) {
  int found = -1;
  double least = 0;
  std::size_t fewest = 0;
  const double bias = all[best].seconds / all[best].predicted;
  for (std::size_t i = 0; i < options_.size(); ++i) {
    const Option& option = options_[i];
    if (i == best || !is_tried(option)) continue;
    const std::size_t looks = std::min(option.took.size(), kEnough);
    double hoped = looks == 0 ? all[i].hoped : all[i].seconds;
    if (looks > 0 && looks < kEnough)  // all of which may have been disturbed
      hoped = std::min(hoped, all[i].predicted * std::min(1.0, bias));
    if (hoped >= kWorthTrying * all[best].seconds) continue;
    if (looks == kEnough && option.took.fastest() * bytes >= all[best].seconds) continue;
    if (found >= 0 && std::pair(looks, hoped) >= std::pair(fewest, least)) continue;
    fewest = looks;
    least = hoped;
    found = static_cast<int>(i);
  }
  if (found >= 0) return found;
  // The model may be far off: a link whose buffers take a short stream at once is faster than its speed says.
  double left = kShareOfTries * spent_s_ - unlikely_s_;
  for (std::size_t i = 0; i < options_.size(); ++i) {
    const double more = all[i].seconds - all[best].seconds;
    if (!is_tried(options_[i]) || !options_[i].took.empty() || more >= left) continue;
    left = more;
    found = static_cast<int>(i);
  }
  if (found >= 0) unlikely_s_ += left;
  return found;
}

const CodecRow* Experience::predict(const Journey& journey) const {
  std::vector<CodecCost> costs;
  std::vector<const CodecRow*> codecs;
  for (const Option& option : options_) {
    if (!option.candidate.codec || !is_tried(option)) continue;
    costs.push_back(option.candidate.cost);
    codecs.push_back(option.candidate.codec);
  }
  const int best = choose_codec(journey, costs);
  return best < 0 ? nullptr : codecs[static_cast<std::size_t>(best)];
}

const CodecRow* Experience::choose(const Journey& journey) {
  ++operations_;
  const std::vector<Estimate> all = estimates(journey);
  std::size_t best = 0;
  for (std::size_t i = 1; i < all.size(); ++i)
    if (is_tried(options_[i]) && all[i].seconds < all[best].seconds) best = i;
  const bool is_by_model =
      std::all_of(all.begin(), all.end(), [](const Estimate& one) { return one.seconds == one.predicted; });
  if (is_by_model) best = index_of(predict(journey));
  spent_s_ += all[best].seconds;
  if (operations_ >= next_try_) {
    next_try_ = operations_ + std::min(operations_ + 1, kLaterEach);
    if (const int other = explored(all, best, journey.bytes); other >= 0) best = static_cast<std::size_t>(other);
  }
  predicted_s_per_byte_ = all[best].predicted / journey.bytes;
  return options_[best].candidate.codec;
}

std::size_t Experience::index_of(const CodecRow* codec) const {
  std::size_t i = 0;
  while (options_[i].candidate.codec != codec) ++i;
  return i;
}

double Experience::best_seconds(const Journey& journey) const {
  double least = plain_seconds(journey);
  const std::vector<Estimate> all = estimates(journey);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (is_tried(options_[i])) least = std::min(least, all[i].seconds);
  return least;
}

void Experience::note(const Trial& done, double seconds) {
  if (usual_) usual_->note(done.codec, done.bytes, seconds / done.predicted_s);
  // Other data after all, however like its first samples were.
  const auto [before, is_first] = ratios_.try_emplace(done.codec, done.ratio);
  if (!is_first && std::abs(done.ratio / before->second - 1) > kLike) {
    forget_times();
    ratios_ = {{done.codec, done.ratio}};
  }
  for (Option& option : options_) {
    if (option.candidate.codec == done.codec) {
      option.took.add(seconds / done.bytes);
      option.idle = 0;
    } else if (++option.idle >= (option.took.size() > kEnough ? kLaterEach : kForgetEach) && !option.took.empty()) {
      // The machine may have changed. The last ones stay longer, or what was tried in vain would be tried again first.
      option.took.forget_oldest();
      option.idle = 0;
    }
  }
}

bool Experience::has_seen(const CodecRow* codec) const {
  return std::any_of(options_.begin(), options_.end(),
                     [&](const Option& option) { return option.candidate.codec == codec && !option.took.empty(); });
}

void Experience::forget_times() {
  for (Option& option : options_) option.took.clear();
}

void Experiences::link_is(double bytes_per_s) {
  const bool is_like = bytes_per_s < 2 * link_bytes_per_s_ && bytes_per_s > link_bytes_per_s_ / 2;
  if (is_like) return;
  link_bytes_per_s_ = bytes_per_s;
  kept_.clear();
  usual_.clear();
  expected_.reset();
}

void Experiences::took(double seconds) {
  const auto done = std::exchange(expected_, std::nullopt);
  if (!done || !(seconds > 0)) return;
  ++heard_;
  if (const auto found = kept_.find(done->first); found != kept_.end()) found->second.note(done->second, seconds);
}

}  // namespace accdp
