#pragma once
#include <cstddef>

namespace accdp {

/// Leaders that tell each other of their calls at once: of so many nodes each hears of all others in one round.
constexpr int kMeetingFanOut = 8;
/// Data that may go along with a signature. Longer ones gain nothing: they are copied once more at both ends.
constexpr std::size_t kMostCarriedBytes = 96 << 10;

/// Whether leaders meet at the first one: where nodes are containers of one machine and share its cores, what counts is
/// how many messages there are, not how many ways after one another.
constexpr bool meets_at_hub(int nodes, double cores_per_node) {
  return nodes > 2 && nodes <= kMeetingFanOut && cores_per_node < 1;
}

/// How leaders hear of all others elsewhere: in each round from up to seven, in the next from leaders eight times as
/// far away. Calls round(distance, messages); a round has messages to leaders 1, 2, ... times the distance away. Few
/// rounds, because each costs a message's way; few messages in them, because each costs time at both ends. Pure.
template <class Round>
void for_meeting_rounds(int nodes, Round round) {
  for (int distance = 1; distance < nodes; distance *= kMeetingFanOut) {
    const int reach = (nodes - 1) / distance;
    round(distance, reach < kMeetingFanOut - 1 ? reach : kMeetingFanOut - 1);
  }
}

}  // namespace accdp
