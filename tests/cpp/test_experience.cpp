// Choosing by what operations took: simulated operations whose times are not what the model predicts.
#include <algorithm>
#include <map>
#include <random>

#include "experience_operations.hpp"

namespace {

/// The model says that codecs gain, because it takes cores that are busy for a slow link.
void learns_what_the_model_gets_wrong() {
  Experience experience(candidates());
  make_tried(experience);
  CHECK(experience.predict(kJourney) == kZhuff && experience.choose(kJourney) == kZhuff);
  const auto first = play(experience, {{nullptr, 135}, {kFpk, 180}, {kZhuff, 200}}, 16);
  CHECK(first.at(nullptr) >= 8);
  const auto then = play(experience, {{nullptr, 135}, {kFpk, 180}, {kZhuff, 200}}, 200);
  CHECK(then.at(nullptr) >= 195);
  CHECK(experience.has_seen(kFpk) && experience.has_seen(kZhuff));
}

/// A good prediction stays what is done, and what seems far worse is tried when that is next to nothing of all time.
void leaves_what_is_good() {
  Experience experience(candidates());
  make_tried(experience);
  const double plain_ms = 1e3 * plain_seconds(kJourney);
  const double zhuff_ms = 1e3 * encoded_seconds(kJourney, experience.codecs()[1].candidate.cost);
  const auto taken = play(experience, {{nullptr, plain_ms}, {kFpk, 1.05 * zhuff_ms}, {kZhuff, zhuff_ms}}, 100);
  CHECK(taken.at(kZhuff) >= 90);
  // Far from the best way, by the model and by what was seen of it.
  Experience clear({{kFpk, {1.05, 2.5e9, 2.8e9}}, {kZhuff, {3, 2e9, 2.6e9}}});
  make_tried(clear);
  const std::map<const CodecRow*, double> truth{{nullptr, plain_ms}, {kFpk, plain_ms}, {kZhuff, plain_ms / 3}};
  const auto first = play(clear, truth, 64);
  CHECK(first.at(kZhuff) == 64 && first.size() == 1);
  const auto later = play(clear, truth, 1000);
  CHECK(later.at(kZhuff) >= 1000 * (1 - 0.025) && later.size() == 3);
}

/// What messages cost a thread is seen of streams that go as they are, in which it has nothing else to do: that may be
/// far too much for one that encodes, too. (Seen at 10 Gbit/s: 55 ms as it is, 47 by fpk, for which 66 to 80 was
/// predicted.)
void tries_what_messages_seem_to_forbid() {
  Experience experience({{kFpk, {1.17, 4e9, 6.5e9}}});
  make_tried(experience);
  const Journey journey{64 << 20, 256 << 10, 1, 1.24e9, 50e-6, 1.05e-9};
  CHECK(encoded_seconds(journey, experience.codecs()[0].candidate.cost) > 1.41 * 55e-3);
  int taken = 0;
  for (int i = 0; i < 12; ++i) {
    const CodecRow* codec = experience.choose(journey);
    taken += codec == kFpk;
    experience.note(experience.trial(codec, journey.bytes, codec ? 1.17 : 1), codec ? 47e-3 : 55e-3);
  }
  CHECK(taken == 8);  // from the fifth on
  // Where the model is right after all, the next kind of data need not try it again.
  Experiences all;
  all.link_is(journey.link_bytes_per_s);
  const auto both = [] { return std::vector<Candidate>{{kFpk, {1.17, 4e9, 6.5e9}}}; };
  for (unsigned kind = 1; kind <= 2; ++kind) {
    Experience& known = all.at({kHere, kind}, both);
    make_tried(known);
    const double fpk_s = encoded_seconds(journey, known.codecs()[0].candidate.cost);
    taken = 0;
    for (int i = 0; i < 12; ++i) {
      const CodecRow* codec = known.choose(journey);
      taken += codec == kFpk;
      known.note(known.trial(codec, journey.bytes, codec ? 1.17 : 1), codec ? fpk_s : 55e-3);
    }
    CHECK(kind == 1 ? taken > 0 : taken == 0);
  }
}

/// Buffers on the way take a short stream at once, so that it need not be made shorter. What one kind of data showed of
/// sending as it is holds for all.
void learns_that_the_link_is_faster() {
  Experiences all;
  all.link_is(kJourney.link_bytes_per_s);
  const auto shorter = [] { return std::vector<Candidate>{{kZhuff, {8, 2e9, 2.6e9}}}; };
  Experience& ids = all.at({kHere, 1}, shorter);
  make_tried(ids);
  const double plain_ms = 1e3 * plain_seconds(kJourney);
  const double zhuff_ms = 1e3 * encoded_seconds(kJourney, ids.codecs()[0].candidate.cost);
  CHECK(plain_ms > 2 * zhuff_ms);
  const std::map<const CodecRow*, double> truth{{nullptr, 0.7 * zhuff_ms}, {kZhuff, zhuff_ms}};
  play(ids, truth, 300);
  CHECK(ids.choose(kJourney) == nullptr);
  Experience& zeros = all.at({kHere, 2}, shorter);
  make_tried(zeros);
  CHECK(zeros.predict(kJourney) == kZhuff && zeros.choose(kJourney) == nullptr);
}

/// A link that takes some bytes at once and the others at its speed, as a switch's buffers or a limiter make it.
class Bucket {
 public:
  Bucket(double bytes_per_s, double bytes) : bytes_per_s_(bytes_per_s), most_(bytes), level_(bytes) {}
  /// Seconds of an operation that computes for `busy_s` and sends so much.
  double send(double busy_s, double bytes) {
    pass(busy_s);
    level_ -= bytes;
    const double wait = level_ < 0 ? -level_ / bytes_per_s_ : 0;
    pass(wait);
    return busy_s + wait;
  }
  void pass(double seconds) { level_ = std::min(most_, level_ + bytes_per_s_ * seconds); }

 private:
  double bytes_per_s_, most_, level_;
};

/// Seconds of all operations over those of the way that is best for all of them. Short streams in bursts, with pauses.
double cost_over_bucket(double link_bytes_per_s, double plain_s, double zhuff_s, double ratio) {
  constexpr int kOperations = 400, kBurst = 40;
  constexpr double kPauseS = 0.1, kBytes = 64 << 10;
  const Journey journey{kBytes, kBytes, 1, link_bytes_per_s, 50e-6};
  const auto total = [&](auto choose, auto note) {
    Bucket link(link_bytes_per_s, 2e-3 * link_bytes_per_s);
    double seconds = 0;
    for (int i = 0; i < kOperations; ++i) {
      if (i % kBurst == 0) link.pass(kPauseS);
      const CodecRow* codec = choose();
      const double took = link.send(codec ? zhuff_s : plain_s, codec ? kBytes / ratio : kBytes);
      note(codec, took);
      seconds += took;
    }
    return seconds;
  };
  const auto by_one = [&](const CodecRow* codec) {
    return total([&] { return codec; }, [](const CodecRow*, double) {});
  };
  Experiences all;
  all.link_is(link_bytes_per_s);
  Experience& known = all.at({kHere, 1}, [&] { return std::vector<Candidate>{{kZhuff, {ratio, 2e9, 2.6e9}}}; });
  make_tried(known);
  const double by_choice = total(
      [&] { return known.choose(journey); },
      [&](const CodecRow* codec, double took) { known.note(known.trial(codec, kBytes, codec ? ratio : 1), took); });
  return by_choice / std::min(by_one(nullptr), by_one(kZhuff));
}

/// Sending as it is looks fast as long as buffers are empty, as they are for one that is tried among shorter ones.
void is_not_deceived_by_buffers() {
  const double where_they_fill = cost_over_bucket(240e6, 85e-6, 120e-6, 2.2);
  const double where_they_do_not = cost_over_bucket(2.4e9, 85e-6, 120e-6, 2.2);
  std::fprintf(stderr, "buffers: %.3f and %.3f of the best way's time\n", where_they_fill, where_they_do_not);
  CHECK(where_they_fill < 1.05 && where_they_do_not < 1.05);
}

/// Few operations try another way, and the first ones, which may be all there are, none. The second one has time for
/// samples.
void tries_seldom() {
  Experience experience(candidates());
  make_tried(experience);
  const double plain_ms = 1e3 * plain_seconds(kJourney);
  const double zhuff_ms = 1e3 * encoded_seconds(kJourney, experience.codecs()[1].candidate.cost);
  std::vector<int> tried;
  for (int operation = 1; operation <= 200; ++operation) {
    const bool is_second = experience.sampling_share() > SamplingBudget::kShare;
    CHECK(is_second == (operation == 2));
    const CodecRow* codec = experience.choose(kJourney);
    if (codec != kZhuff) tried.push_back(operation);
    const double ms = codec == kZhuff ? zhuff_ms : codec == kFpk ? 1.02 * zhuff_ms : plain_ms;
    note(experience, codec, ms * 1e-3, codec ? 1.2 : 1);
  }
  CHECK(!tried.empty() && tried.front() >= 5 && tried.size() <= 6);
}

/// One operation that was disturbed does not decide, neither for a way nor against it.
void forgives_a_disturbance() {
  Experience experience(candidates());
  make_tried(experience);
  CHECK(experience.choose(kJourney) == kZhuff);
  note(experience, kZhuff, 1, 1.2);
  const auto taken = play(experience, {{nullptr, 138}, {kFpk, 131}, {kZhuff, 100}}, 64);
  CHECK(taken.at(kZhuff) >= 48);
}

/// Neither where the model takes all ways for far slower than they are, so that the one that was disturbed seems no
/// worse than predicted and the others better.
void forgives_a_disturbance_where_predictions_are_off() {
  Experience experience(candidates());
  make_tried(experience);
  CHECK(experience.choose(kJourney) == kZhuff);
  note(experience, kZhuff, 0.16, 1.2);
  auto taken = play(experience, {{nullptr, 45}, {kFpk, 30}, {kZhuff, 25}}, 64);
  CHECK(taken[kZhuff] >= 48);
}

/// Nor where others, of which too much is predicted, could be tried again and again instead. (Seen at 10 Gbit/s: of 90
/// operations three by zstd, which took longer each time, and only one, a slow one, by what was best.)
void gives_what_was_disturbed_its_turn() {
  const CodecRow* zstd = find_codec(CodecId::kZstd);
  Experience experience({{zstd, {5, 1.5e9, 2.6e9}}, {kFpk, {4, 1.4e9, 2.6e9}}, {kZhuff, {3, 1.2e9, 2.6e9}}});
  make_tried(experience);
  play(experience, {{nullptr, 134}, {zstd, 160}, {kFpk, 170}, {kZhuff, 400}}, 3);
  CHECK(experience.has_seen(kZhuff));
  const auto taken = play(experience, {{nullptr, 134}, {zstd, 160}, {kFpk, 170}, {kZhuff, 90}}, 87);
  CHECK(taken.at(kZhuff) >= 75);
}

/// Programs repeat themselves: here every second operation takes longer, by whatever way, as the first one after a
/// pause does. Times of one way from these and of another one from those would say nothing.
void is_not_in_step_with_the_program() {
  Experience experience(candidates());
  make_tried(experience);
  constexpr int kOperations = 1000;
  std::map<const CodecRow*, int> taken;
  for (int operation = 1; operation <= kOperations; ++operation) {
    const CodecRow* codec = experience.choose(kJourney);
    ++taken[codec];
    const double ms = (codec == kZhuff ? 100 : codec == kFpk ? 110 : 130) * (operation % 2 ? 1 : 1.4);
    note(experience, codec, ms * 1e-3, codec ? 1.2 : 1);
  }
  std::fprintf(stderr, "in step: %d of %d\n", taken[kZhuff], kOperations);
  CHECK(taken[kZhuff] >= 0.97 * kOperations);
}

/// On a machine that is shared, times scatter upwards, by a half and sometimes several times. Of many programs few end
/// with a way that is not the best, whatever they saw first, and all learning costs little.
void finds_the_best_in_noise() {
  const std::map<const CodecRow*, double> truth{{nullptr, 130}, {kFpk, 115}, {kZhuff, 100}};
  constexpr int kPrograms = 200, kOperations = 300;
  int wrong_at_end = 0;
  double spent = 0;
  for (unsigned seed = 1; seed <= kPrograms; ++seed) {
    std::mt19937 random(seed);
    std::exponential_distribution<double> slower(5);
    std::bernoulli_distribution is_interrupted(0.1);
    Experience experience(candidates());
    make_tried(experience);
    const CodecRow* codec = nullptr;
    for (int i = 0; i < kOperations; ++i) {
      codec = experience.choose(kJourney);
      spent += truth.at(codec);
      const double ms = truth.at(codec) * (1 + slower(random)) * (is_interrupted(random) ? 4 : 1);
      note(experience, codec, ms * 1e-3, codec ? 1.2 : 1);
    }
    wrong_at_end += codec != kZhuff;
  }
  spent /= kPrograms * kOperations * truth.at(kZhuff);
  std::fprintf(stderr, "noise: %.3f of the best way's time, %d of %d programs end with another\n", spent, wrong_at_end,
               kPrograms);
  CHECK(spent < 1.03 && wrong_at_end < kPrograms / 10);
}

/// What was seen long ago is looked at again.
void notices_that_the_machine_changed() {
  Experience experience(candidates());
  make_tried(experience);
  CHECK(play(experience, {{nullptr, 140}, {kFpk, 115}, {kZhuff, 100}}, 300)[kZhuff] >= 290);
  CHECK(play(experience, {{nullptr, 140}, {kFpk, 50}, {kZhuff, 100}}, 4000)[kFpk] >= 1000);
}

/// Machines have slow moments, of some hundred operations each: they are no reason to leave the best way for long. What
/// a broadcast took is known only after the next one was chosen for.
void bears_slow_moments() {
  constexpr int kPrograms = 100, kOperations = 1000;
  for (const double other : {1.05, 1.2, 1.4}) {
    const std::map<const CodecRow*, double> truth{{nullptr, 130 * other}, {kFpk, 100 * other}, {kZhuff, 100}};
    double spent = 0, least = 0;
    for (unsigned seed = 1; seed <= kPrograms; ++seed) {
      std::mt19937 random(seed);
      std::exponential_distribution<double> slower(4);
      std::bernoulli_distribution is_interrupted(0.1), changes(1 / 150.0);
      Experiences all;
      Experience& experience = all.at({kHere, 1}, candidates);
      make_tried(experience);
      double level = 1, took_ms = 0;
      for (int i = 0; i < kOperations; ++i) {
        const CodecRow* codec = experience.choose(kJourney);
        all.took(took_ms * 1e-3);
        if (changes(random)) level = 2.5 - level;
        took_ms = truth.at(codec) * level * (1 + slower(random)) * (is_interrupted(random) ? 2 : 1);
        all.expect({kHere, 1}, experience.trial(codec, kJourney.bytes, codec ? 1.2 : 1));
        spent += truth.at(codec) * level;
        least += truth.at(kZhuff) * level;
      }
    }
    std::fprintf(stderr, "slow moments, the next best way %.2f: %.3f of the best way's time\n", other, spent / least);
    CHECK(spent / least < 1.03);
  }
}

/// Ways that are tried in vain do not keep the one from its turn that its samples, and other data, make look bad.
void gives_each_its_turn() {
  Experiences all;
  const auto four = [] {
    std::vector<Candidate> found = candidates();
    found.push_back({find_codec(CodecId::kZstd), {1.22, 1.9e9, 2.5e9}});
    found[0].cost.encode_bytes_per_s = 0.2e9;
    return found;
  };
  Experience& others = all.at({kHere, 1}, candidates);
  make_tried(others);
  others.choose(kJourney);
  note(others, kFpk, others.best_seconds(kJourney), 1.2);
  Experience& experience = all.at({kHere, 2}, four);
  make_tried(experience);
  CHECK(experience.predict(kJourney) == kZhuff);
  const auto taken = play(experience, {{nullptr, 60}, {kFpk, 25}, {kZhuff, 50}, {find_codec(CodecId::kZstd), 60}}, 600);
  std::fprintf(stderr, "its turn: %d of 600\n", taken.count(kFpk) ? taken.at(kFpk) : 0);
  CHECK(experience.choose(kJourney) == kFpk && taken.at(kFpk) >= 200);
}

/// The best way is left while something takes its cores, and found again afterwards.
void comes_back() {
  Experience experience(candidates());
  make_tried(experience);
  CHECK(play(experience, {{nullptr, 120}, {kFpk, 130}, {kZhuff, 100}}, 200)[kZhuff] >= 190);
  CHECK(play(experience, {{nullptr, 125}, {kFpk, 230}, {kZhuff, 200}}, 40)[nullptr] >= 20);
  const auto taken = play(experience, {{nullptr, 120}, {kFpk, 130}, {kZhuff, 100}}, 3000);
  std::fprintf(stderr, "comes back: %d of 3000\n", taken.at(kZhuff));
  CHECK(taken.at(kZhuff) >= 1000);
}

/// Data that one codec cannot make smaller may give way to data that it can.
void looks_again_at_what_did_not_help() {
  Experience experience(candidates());
  make_tried(experience);
  const std::size_t looked_at = experience.codecs()[1].slice_bytes;
  experience.codecs()[0].helps = false;
  experience.has_all_samples();
  CHECK(experience.codecs()[0].helps && experience.codecs()[0].slice_bytes == 0);
  CHECK(looked_at > 0 && experience.codecs()[1].slice_bytes == looked_at);
}

}  // namespace

int main() {
  looks_again_at_what_did_not_help();
  learns_what_the_model_gets_wrong();
  leaves_what_is_good();
  tries_what_messages_seem_to_forbid();
  learns_that_the_link_is_faster();
  is_not_deceived_by_buffers();
  tries_seldom();
  forgives_a_disturbance();
  forgives_a_disturbance_where_predictions_are_off();
  gives_what_was_disturbed_its_turn();
  is_not_in_step_with_the_program();
  finds_the_best_in_noise();
  notices_that_the_machine_changed();
  bears_slow_moments();
  gives_each_its_turn();
  comes_back();
}
