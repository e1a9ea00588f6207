#pragma once
// Simulated operations, which take other times than the model predicts.
#include <map>
#include <vector>

#include "check.hpp"
#include "codec/experience.hpp"

using namespace accdp;

inline const CodecRow *const kFpk = find_codec(CodecId::kFpk), *const kZhuff = find_codec(CodecId::kZhuff);
inline const Journey kJourney{64 << 20, 256 << 10, 1, 0.5e9, 50e-6};
constexpr unsigned kHere = 0, kElsewhere = 1;

/// As samples say: both gain, zhuff a little more.
inline std::vector<Candidate> candidates() { return {{kFpk, {1.17, 2.5e9, 2.8e9}}, {kZhuff, {1.25, 2e9, 2.6e9}}}; }

inline void make_tried(Experience& experience) {
  for (Experience::Option& option : experience.codecs()) option.slice_bytes = 4 << 10;
}

inline void note(Experience& experience, const CodecRow* codec, double seconds, double ratio) {
  experience.note(experience.trial(codec, kJourney.bytes, ratio), seconds);
}

/// Plays operations that take `truth` ms each; returns how often each way was taken.
inline std::map<const CodecRow*, int> play(Experience& experience, std::map<const CodecRow*, double> truth,
                                           int operations) {
  std::map<const CodecRow*, int> taken;
  for (int i = 0; i < operations; ++i) {
    const CodecRow* codec = experience.choose(kJourney);
    ++taken[codec];
    note(experience, codec, truth.at(codec) * 1e-3, codec ? 1.2 : 1);
  }
  return taken;
}
