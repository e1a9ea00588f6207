// Measurement of a group's machine. Phases:
//   1. on the node: empty steps; every rank copies into its slot and out of a neighbour's, all at once, and reduces;
//   2. between nodes, leaders only: each sends to the next and receives from the one before, small messages one by one,
//      several at once, and a long one;
//   3. the worst of all ranks, by an allreduce.
// Of each the best of a few turns counts: others are those of something else that ran.
#include "coll/measure.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "coll/algorithms.hpp"

namespace accdp {
namespace {

constexpr int kTurns = 4, kSteps = 8, kBurst = 8;
constexpr std::size_t kBlock = 512 << 10, kSmall = 8;

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

template <class Body>
double best_of(int turns, Body body) {
  double best = 1e9;
  for (int turn = 0; turn < turns; ++turn) {
    const auto began = Clock::now();
    body();
    best = std::min(best, seconds_since(began));
  }
  return std::max(best, 1e-9);
}

/// Seconds per step, per byte copied, per byte reduced; 0 where there is nothing to measure.
std::array<double, 3> measure_node(Context& c) {
  const std::size_t bytes = std::min(kBlock, c.slot_bytes());
  const Bytes mine = c.scratch(bytes);
  const int neighbour = (c.local_rank() + 1) % c.local_size();
  double step = 0, in = 1e9, out = 1e9, folded = 1e9;
  if (c.local_size() > 1)
    step = best_of(kTurns,
                   [&] {
                     for (int i = 0; i < kSteps; ++i) c.meet();
                   }) /
           kSteps;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::byte* slot = c.open();
    in = std::min(in, best_of(1, [&] { std::memcpy(slot, mine.data(), bytes); }));
    c.publish();
    c.await_all();
    out = std::min(out, best_of(1, [&] { std::memcpy(mine.data(), c.slot(neighbour), bytes); }));
    const void* sources[] = {mine.data(), c.slot(neighbour)};
    const Reduction how{Datatype::kF32, ReduceOp::kSum};
    folded = std::min(folded, best_of(1, [&] { reduce(mine.data(), sources, bytes / sizeof(float), how); }));
  }
  return {step, std::max(in, out) / static_cast<double>(bytes), folded / (2 * static_cast<double>(bytes))};
}

/// Seconds per message, per byte, and per further message of a burst. Leaders only.
std::array<double, 3> measure_wire(Context& c) {
  const Topology& t = c.topology();
  const int next = t.leader((t.node() + 1) % t.nodes()), before = t.leader((t.node() + t.nodes() - 1) % t.nodes());
  const Bytes out = c.scratch(kBlock), in = c.scratch(kBlock);
  auto turn = [&](std::size_t bytes, int messages) {
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing;
    for (int i = 0; i < messages; ++i) {
      incoming.push_back({before, in.subspan(i * bytes, bytes)});
      outgoing.push_back({next, out.subspan(i * bytes, bytes)});
    }
    c.exchange(incoming, outgoing);
  };
  const double one = best_of(4 * kTurns, [&] { turn(kSmall, 1); });
  const double burst = best_of(kTurns, [&] { turn(kSmall, kBurst); });
  turn(kBlock / 4, 1);  // wakes the link
  // The last turn is the slower one where a link lets a burst through first.
  const double large = best_of(1, [&] { turn(kBlock, 1); });
  return {one, std::max(large - one, large / 4) / static_cast<double>(kBlock),
          std::max(burst - one, 0.0) / (2 * (kBurst - 1))};
}

}  // namespace

Machine measure_machine(Context& c) {
  c.meet();
  const std::array<double, 3> node = measure_node(c);
  std::array<double, 3> wire{};
  if (c.topology().nodes() > 1 && c.topology().is_leader()) wire = measure_wire(c);
  std::array<double, 6> worst{node[0], node[1], node[2], wire[0], wire[1], wire[2]};
  const Bytes numbers = std::as_writable_bytes(std::span(worst));
  reduce_to(c, numbers, numbers, {Datatype::kF64, ReduceOp::kMax}, -1);
  Machine machine = c.machine();
  if (worst[0] > 0) machine.step_s = worst[0];
  machine.node_bytes_per_s = 1 / worst[1];
  machine.reduce_bytes_per_s = 1 / worst[2];
  if (c.topology().nodes() == 1) return machine;
  machine.link = {1 / worst[4], worst[3]};
  machine.message_s = worst[5];
  return machine;
}

}  // namespace accdp
