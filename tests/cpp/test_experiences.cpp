// What operations with data of several kinds, over several links, showed of each other.
#include "experience_operations.hpp"

namespace {

/// Other data that only looked alike: what was seen is forgotten. Over another link, too.
void forgets() {
  Experiences all;
  all.link_is(1e9);
  Experience& one = all.at({kHere, 7}, candidates);
  make_tried(one);
  one.choose(kJourney);
  note(one, kZhuff, 0.2, 1.2);
  CHECK(one.has_seen(kZhuff));
  note(one, kFpk, 0.2, 1.1);
  note(one, kFpk, 0.2, 9);
  CHECK(!one.has_seen(kZhuff) && one.has_seen(kFpk));
  all.link_is(1.5e9);
  CHECK(all.at({kHere, 7}, candidates).has_seen(kFpk));
  all.link_is(0.4e9);
  CHECK(!all.at({kHere, 7}, candidates).has_seen(kFpk));
}

/// What data of one kind showed about the machine holds for other data from the start, but not for other places.
void transfers() {
  Experiences all;
  all.link_is(0.5e9);
  Experience& weights = all.at({kHere, 1}, candidates);
  make_tried(weights);
  play(weights, {{nullptr, 135}, {kFpk, 180}, {kZhuff, 200}}, 16);
  Experience& gradients = all.at({kHere, 2}, candidates);
  make_tried(gradients);
  CHECK(gradients.predict(kJourney) == kZhuff && gradients.choose(kJourney) == nullptr);
  for (const std::uint64_t key : {1, 2}) {
    Experience& elsewhere = all.at({kElsewhere, key}, candidates);
    CHECK(!elsewhere.has_seen(nullptr));
    make_tried(elsewhere);
    CHECK(elsewhere.choose(kJourney) == kZhuff);
  }
  all.link_is(0.1e9);  // nor over another link
  Experience& anew = all.at({kHere, 2}, candidates);
  make_tried(anew);
  CHECK(anew.choose(kJourney) == kZhuff);
}

/// A codec that was faster than predicted was so for the sake of its data.
void does_not_transfer_luck() {
  Experiences all;
  all.link_is(0.5e9);
  Experience& zeros = all.at({kHere, 1}, candidates);
  make_tried(zeros);
  CHECK(zeros.choose(kJourney) == kZhuff);
  note(zeros, kZhuff, 0.01, 1.2);
  Experience& weights = all.at(
      {kHere, 2}, [] { return std::vector<Candidate>{{kFpk, {1.5, 2.5e9, 2.8e9}}, {kZhuff, {1.25, 2e9, 2.6e9}}}; });
  make_tried(weights);
  CHECK(weights.choose(kJourney) == kFpk);
}

/// A time that comes late goes to the operation that it is of, if that is not forgotten; one that nobody expects, to
/// none.
void finds_whose_time_it_is() {
  Experiences all;
  all.link_is(0.5e9);
  Experience& weights = all.at({kHere, 1}, candidates);
  make_tried(weights);
  all.took(0.2);
  weights.choose(kJourney);
  all.expect({kHere, 1}, weights.trial(kZhuff, kJourney.bytes, 1.2));
  Experience& others = all.at({kHere, 2}, candidates);
  make_tried(others);
  others.choose(kJourney);
  all.took(0.1);
  CHECK(weights.has_seen(kZhuff) && !others.has_seen(kZhuff));
  weights.forget_times();
  all.took(0.2);
  CHECK(!weights.has_seen(kZhuff) && !others.has_seen(kZhuff));
  all.expect({kHere, 1}, weights.trial(kZhuff, kJourney.bytes, 1.2));
  all.took(0);  // which was lost
  all.took(0.1);
  CHECK(!weights.has_seen(kZhuff));
  all.expect({kHere, 1}, weights.trial(kZhuff, kJourney.bytes, 1.2));
  all.link_is(0.1e9);
  Experience& anew = all.at({kHere, 1}, candidates);
  all.took(0.1);
  CHECK(!anew.has_seen(kZhuff));
}

}  // namespace

int main() {
  forgets();
  transfers();
  does_not_transfer_luck();
  finds_whose_time_it_is();
}
