#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "base/settings.hpp"
#include "coll/fabric.hpp"
#include "node/board.hpp"
#include "node/process.hpp"

namespace accdp {
namespace {

constexpr std::chrono::seconds kInFlight{2};
constexpr std::chrono::seconds kBetweenQuestions{2};  // of one rank that waits: many may ask one store
constexpr std::chrono::milliseconds kShownAfter{100}, kBetweenShows{250};

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

}  // namespace

bool Fabric::has_left(int rank) const {
  if (!topology_.is_near(rank)) return said_farewell_[rank];
  return board_->line(topology_.local_of(rank)).left.load(std::memory_order_acquire);
}

bool Fabric::has_ended(int rank) const {
  if (!topology_.is_near(rank)) return wire_->has_ended(rank);
  return !process_lives(peers_[rank].pid, peers_[rank].start_time);
}

bool Fabric::has_gone(int rank) const { return rank != topology_.rank() && (has_left(rank) || has_ended(rank)); }

int Fabric::first_lost() const {
  for (int rank : topology_.neighbours())
    if (!has_left(rank) && has_gone(rank)) return rank;
  return -1;
}

void Fabric::throw_if_lost(const std::string& what) {
  if (const int rank = first_lost(); rank >= 0) fail(FailureKind::kDied, how_it_went(rank) + " during " + what);
  throw_if_failed();
}

std::string Fabric::how_it_went(int rank) const {
  return describe(rank) + (has_left(rank) ? " left the group" : " exited");
}

std::string Fabric::whereabouts(int rank) const {
  const int pid = peers_[rank].pid;
  const std::string who = "; rank " + std::to_string(rank);
  if (!topology_.is_near(rank)) return "";
  if (process_is_stopped(pid)) return who + " is stopped";
  const std::optional<StatusOfProcess> shown = status_of_process(pid);
  if (!shown || !shown->trouble.empty()) return "";
  std::int64_t last = 0;
  for (const GroupStatus& group : shown->groups) {
    const std::string where = group.group == status_.group() ? "" : " of group " + group.name;
    if (group.call.sequence > 0 && group.ended_ns == 0)
      return who + " is in " + accdp::describe(group.call) + " #" + std::to_string(group.call.sequence) + where;
    for (const GroupStatus::Wait& wait : group.waits)
      if (wait.kind == kForMessages) return who + " is in " + wait.what + where;
    last = std::max(last, group.ended_ns);
  }
  if (shown->not_shown > 0) return "";
  return who + (last ? " has been in no collective for " + seconds_text((nanoseconds(Clock::now()) - last) * 1e-9)
                     : " has been in no collective yet");
}

void Lookout::describe_to(GroupStatus::Wait& wait) const {
  wait.what = what();
  wait.since_ns = nanoseconds(began_);
  for (int rank = 0; rank < fabric_.topology().size(); ++rank) {
    if (!waits_for(rank)) continue;
    const Peer& peer = fabric_.peer(rank);
    if (wait.count++ <= StatusLine::kMostShown) wait.ranks.push_back({rank, peer.pid, peer.host});
  }
}

/// For who looks at this process from outside.
void Lookout::show(Clock::time_point now) {
  if (std::exchange(next_show_, now + (is_shown_ ? kBetweenShows : kShownAfter)) == Clock::time_point{}) {
    began_ = now;
    return;
  }
  GroupStatus::Wait wait{.kind = kind_, .seen_ns = nanoseconds(now)};
  describe_to(wait);
  const bool is_long = wait.count > 0 && wait.seen_ns - wait.since_ns >= std::chrono::nanoseconds(kShownAfter).count();
  if (is_long) fabric_.status().wait(wait);
  if (!is_long && is_shown_) fabric_.status().end_wait(kind_);
  is_shown_ = is_long;
}

void Lookout::look_around(bool had_failed) {
  if (had_failed) fabric_.throw_if_failed();
  if (fabric_.board().has_failed()) return;
  check_interrupt();
  const auto now = Clock::now();
  const Topology& t = fabric_.topology();
  if (now >= next_show_) show(now);
  if (now >= next_census_) {
    const bool first = next_census_ == Clock::time_point{};
    next_census_ =
        now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(settings().liveness_s));
    if (!first || deadline_.passed())
      for (int rank = 0; rank < t.size(); ++rank) {
        if (!waits_for(rank) || !fabric_.has_gone(rank)) continue;
        // It may have done its part just before it went: only believe it when a second look still misses something.
        if (suspect_ == rank) {
          fabric_.fail(fabric_.has_left(rank) ? FailureKind::kLeft : FailureKind::kDied,
                       fabric_.how_it_went(rank) + " during " + what());
          fabric_.throw_if_failed();
        }
        suspect_ = rank;
        // What it sent to another node before it left may still be on the wire.
        next_census_ = t.is_near(rank) ? now : now + kInFlight;
        return;
      }
  }
  if (next_question_ == Clock::time_point{}) next_question_ = now + kBetweenQuestions;
  if (now >= next_question_) {
    next_question_ = now + kBetweenQuestions;
    fabric_.look_for_notices();
    if (fabric_.board().has_failed()) return;
  }
  if (now < deadline_.at()) return;
  std::string missing, lost;  // for whom those that are missing may be waiting
  for (int rank = 0, sought = 0; rank < t.size(); ++rank)
    if (waits_for(rank)) {
      fabric_.expect_silence_of(rank);
      missing += (missing.empty() ? "" : ", ") + fabric_.describe(rank);
      if (sought++ < Fabric::kMostSoughtOut) lost += fabric_.whereabouts(rank);
    } else if (!fabric_.has_left(rank) && fabric_.has_gone(rank)) {
      lost += "; " + fabric_.how_it_went(rank);
    }
  fabric_.fail(FailureKind::kTimeout, what() + " Timed out after " + seconds_text(deadline_.seconds()) +
                                          " (timeout) waiting for " +
                                          (missing.empty() ? std::string("other ranks") : missing) + lost);
  fabric_.throw_if_failed();
}

}  // namespace accdp
