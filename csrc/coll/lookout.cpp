#include <chrono>
#include <cstdio>
#include <string>

#include "base/settings.hpp"
#include "coll/fabric.hpp"
#include "node/board.hpp"

namespace accdp {
namespace {

constexpr std::chrono::seconds kInFlight{2};
constexpr std::chrono::seconds kBetweenQuestions{2};  // of one rank that waits: many may ask one store
constexpr std::chrono::milliseconds kShownAfter{100}, kBetweenShows{250};

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

/// For who looks at this process from outside.
void Lookout::show(Clock::time_point now) {
  if (began_ == Clock::time_point{}) {
    began_ = now;
    next_show_ = now + kShownAfter;
    return;
  }
  next_show_ = now + kBetweenShows;
  GroupStatus::Wait wait{channel_, is_attendant(), what(), {}, 0, nanoseconds(began_), nanoseconds(now)};
  for (int rank = 0; rank < fabric_.topology().size(); ++rank) {
    if (!waits_for(rank)) continue;
    const Peer& peer = fabric_.peer(rank);
    if (wait.count++ < StatusLine::kMostShown) wait.ranks.push_back({rank, peer.pid, peer.host});
  }
  fabric_.status().wait(wait);
  is_shown_ = true;
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
  for (int rank = 0; rank < t.size(); ++rank)
    if (waits_for(rank)) {
      fabric_.expect_silence_of(rank);
      missing += (missing.empty() ? "" : ", ") + fabric_.describe(rank);
    } else if (!fabric_.has_left(rank) && fabric_.has_gone(rank)) {
      lost += "; " + fabric_.how_it_went(rank);
    }
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g s", deadline_.seconds());
  fabric_.fail(FailureKind::kTimeout, what() + " Timed out after " + seconds + " (timeout) waiting for " +
                                          (missing.empty() ? std::string("other ranks") : missing) + lost);
  fabric_.throw_if_failed();
}

}  // namespace accdp
