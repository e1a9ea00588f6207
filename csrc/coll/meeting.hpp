#pragma once

namespace accdp {

/// How leaders hear of all others: in each round from up to seven, in the next from leaders eight times as far away.
/// Calls round(distance, messages); a round has messages to leaders 1, 2, ... times the distance away. Few rounds,
/// because each costs a message's way; few messages in them, because each costs time at both ends. Pure.
template <class Round>
void for_meeting_rounds(int nodes, Round round) {
  constexpr int kFanOut = 8;
  for (int distance = 1; distance < nodes; distance *= kFanOut) {
    const int reach = (nodes - 1) / distance;
    round(distance, reach < kFanOut - 1 ? reach : kFanOut - 1);
  }
}

}  // namespace accdp
