// What ranks say to each other before an operation over nodes: how many messages, and who is named when one disagrees.
#include <numeric>
#include <set>

#include "coll/meeting.hpp"
#include "group_checks.hpp"

namespace {

/// After the last round everybody has heard of all, by few messages.
void everybody_hears_of_all() {
  for (int nodes : {1, 2, 3, 7, 8, 9, 15, 57, 64, 65, 500, 512, 4096}) {
    std::set<int> heard{0};  // so many places before
    int sent = 0;
    for_meeting_rounds(nodes, [&](int distance, int messages) {
      const std::set<int> had = heard;
      for (int i = 1; i <= messages; ++i)
        for (int place : had) heard.insert((place + i * distance) % nodes);
      sent += messages;
    });
    CHECK(heard.size() == static_cast<std::size_t>(nodes) && sent <= 28);
    CHECK(nodes > 8 || sent == nodes - 1);
  }
}

/// What is said about a call has one of two lengths; nothing else is read as one.
void damaged_words() {
  const auto mail = std::make_shared<Mail>();
  ThreadWire mine(mail, 0, 2), other(mail, 1, 2);
  RollCall roll(&mine, 2);
  for (std::size_t bytes : {0, 7, 9, 200}) {
    const std::vector<std::byte> words(bytes);
    Wire::Request sent = other.isend(words, 0, Wire::kRollCall);
    CHECK(other.test(sent));
    CHECK_THROWS(roll.look(), MismatchError, "rank 1 sent " + std::to_string(bytes) + " bytes about a call");
  }
}

/// Who is asked for a call that it has not begun answers when it does, however many others come before.
void asked_ahead() {
  const auto mail = std::make_shared<Mail>();
  ThreadWire mine(mail, 0, 2), other(mail, 1, 2);
  RollCall roll(&mine, 2);
  const std::uint64_t wanted = 3;
  for (std::uint64_t sequence = 1; sequence <= wanted; ++sequence) {
    roll.begin({.sequence = sequence});
    int from = -1;
    std::vector<std::byte> text;
    CHECK(other.take(Wire::kRollCall, from, text) == (sequence == wanted));
    if (sequence == wanted) CHECK(from == 0 && text.size() == sizeof wanted + sizeof(Signature));
    if (sequence > 1) continue;
    Wire::Request sent = other.isend(std::as_bytes(std::span(&wanted, 1)), 0, Wire::kRollCall);
    CHECK(other.test(sent));
    roll.look();
  }
}

/// A node of its own for each rank.
std::vector<int> nodes_apart(int nodes) {
  std::vector<int> places(nodes);
  std::iota(places.begin(), places.end(), 0);
  return places;
}

/// Leaders send a signature to each other one where nodes are few, or to the hub, the other ranks none.
void messages_of_a_barrier(Group& group) {
  group.barrier();
  const Topology& t = group.topology();
  const std::size_t told = group.shape().meets_at_hub && t.node() > 0 ? 1 : t.nodes() - 1;
  CHECK(group.last_run().wire_bytes == (t.is_leader() ? told * kSignatureBytes : 0));
}

/// All ranks name the one that calls something else first. With one other rank: the one that is not rank 0.
void one_is_odd(Group& group, int odd) {
  Ints data(group.rank() == odd ? 9 : 8);
  const int named = group.size() == 2 ? 1 : odd;
  const std::string first = "disagree: rank " + std::to_string(named) + " (pid";
  // The first barrier, because a group that has failed elsewhere says so while it is still being made. A rank that
  // wakes up late in the barrier may hear of the failure there; root goes ahead, and hears of it in the second one.
  CHECK_THROWS((group.barrier(), group.bcast(bytes(data), kType, 0), group.barrier()), MismatchError, first);
  CHECK_THROWS(group.barrier(), MismatchError, first);
}

/// The larger side is right.
void three_against_five(Group& group) {
  Ints data(group.rank() % 3 == 1 ? 9 : 8);  // ranks 1, 4 and 7
  CHECK_THROWS((group.barrier(), group.bcast(bytes(data), kType, 0), group.barrier()), MismatchError,
               "disagree: rank 1 (pid");
}

}  // namespace

int main() {
  damaged_words();
  asked_ahead();
  everybody_hears_of_all();
  for (double cores : {kOwnCores, kSharedCores}) {
    for (int nodes = 2; nodes <= 8; ++nodes) {
      run_nodes(nodes_apart(nodes), messages_of_a_barrier, cores);
      for (int odd = 0; odd < nodes; ++odd)
        run_nodes(nodes_apart(nodes), [&](Group& group) { one_is_odd(group, odd); }, cores);
    }
    run_nodes({0, 0, 1, 1, 2, 2}, messages_of_a_barrier, cores);
    // Of the two ranks of a node the second is taken to be the odd one.
    for (int odd : {1, 3, 5}) run_nodes({0, 0, 1, 1, 2, 2}, [&](Group& group) { one_is_odd(group, odd); }, cores);
    run_nodes(nodes_apart(8), three_against_five, cores);
  }
  run_nodes(nodes_apart(9), [](Group& group) { one_is_odd(group, 4); });  // two rounds
}
