// Measurement of a group's machine. Phases:
//   1. on the node: empty steps, when the ranks are accustomed to short waits; every rank copies into its slot and out
//   of a neighbour's, all at once, and reduces;
//   2. between nodes, likewise, leaders only: each sends to the next and receives from the one before, small messages
//   one by one,
//      several at once, and a long one;
//   3. the worst of all ranks, by an allreduce.
// Of each the median of a few turns counts: on a busy machine neither the best nor the worst one comes again.
#include "coll/measure.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "coll/algorithms.hpp"

namespace accdp {
namespace {

constexpr int kTurns = 5, kRepeats = 8;
// Short waits before anything is timed: ranks that waited long before expect to again, and sleep at once
// (node/waiter.hpp); a series of short operations finds them awake.
constexpr int kAccustom = 64;
constexpr std::size_t kMessage = 1 << 20, kSmall = 8;

/// Median of some turns, seconds for one of the repetitions of a turn.
template <class Body>
double usual(int turns, int repeats, Body body) {
  std::vector<double> seconds;
  for (int turn = 0; turn < turns; ++turn) {
    const auto began = Clock::now();
    for (int i = 0; i < repeats; ++i) body();
    seconds.push_back(seconds_since(began) / repeats);
  }
  std::nth_element(seconds.begin(), seconds.begin() + turns / 2, seconds.end());
  return std::max(seconds[turns / 2], 1e-9);
}

/// Memory whose pages are there already.
Bytes zeros(Context& c, std::size_t bytes) {
  const Bytes memory = c.scratch(bytes);
  std::fill(memory.begin(), memory.end(), std::byte{});
  return memory;
}

/// Seconds per step (0: there is nobody to step with), per byte copied, per byte reduced.
std::array<double, 3> measure_node(Context& c) {
  const std::size_t bytes = std::min(kMessage, c.slot_bytes());
  const Bytes memory = zeros(c, kTurns * bytes);  // other bytes each turn, as a long message has
  const int neighbour = (c.local_rank() + 1) % c.local_size();
  for (int i = 0; i < kAccustom; ++i) c.meet();
  const double step = c.local_size() > 1 ? usual(kTurns, kRepeats, [&] { c.meet(); }) : 0;
  std::byte* slot = c.open(bytes);
  std::size_t at = 0;
  auto next = [&] { return memory.data() + bytes * (at++ % kTurns); };
  const double in = usual(kTurns, 1, [&] { std::memcpy(slot, next(), bytes); });
  c.publish();
  c.await_all();
  const double out = usual(kTurns, 1, [&] { std::memcpy(next(), c.slot(neighbour), bytes); });
  const double folded = usual(kTurns, 1, [&] {
    std::byte* mine = next();
    const void* sources[] = {mine, c.slot(neighbour)};
    reduce(mine, sources, bytes / sizeof(float), {Datatype::kF32, ReduceOp::kSum});
  });
  return {step, std::max(in, out) / static_cast<double>(bytes), folded / (2 * static_cast<double>(bytes))};
}

/// Seconds per message, per byte, and per further message of a burst. Leaders only.
std::array<double, 3> measure_wire(Context& c) {
  const Topology& t = c.topology();
  const int next = t.leader((t.node() + 1) % t.nodes()), before = t.leader((t.node() + t.nodes() - 1) % t.nodes());
  const Bytes out = zeros(c, kMessage), in = zeros(c, kMessage);
  auto turn = [&](std::size_t bytes, int messages) {
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing;
    for (int i = 0; i < messages; ++i) {
      incoming.push_back({before, in.subspan(i * bytes, bytes)});
      outgoing.push_back({next, out.subspan(i * bytes, bytes)});
    }
    c.exchange(incoming, outgoing);
  };
  for (int i = 0; i < kAccustom; ++i) turn(kSmall, 1);
  // Several in a row: a single one may find its message there already.
  const double one = usual(kTurns, kRepeats, [&] { turn(kSmall, 1); });
  const double burst = usual(kTurns, 2, [&] { turn(kSmall, kRepeats); });
  turn(kMessage / 2, 1);  // a link may let the first bytes through faster
  const double large = usual(1, 3, [&] { turn(kMessage, 1); });
  return {one, std::max(large - one, large / 4) / static_cast<double>(kMessage),
          std::max(burst - one, 0.0) / (2 * (kRepeats - 1))};
}

}  // namespace

Machine measure_machine(Context& c) {
  c.meet();
  const std::array<double, 3> node = measure_node(c);
  std::array<double, 3> wire{};
  if (c.topology().nodes() > 1 && c.topology().is_leader()) wire = measure_wire(c);
  std::array<double, 6> worst{node[0], node[1], node[2], wire[0], wire[1], wire[2]};
  agree_on(c, worst, ReduceOp::kMax);
  Machine machine = c.machine();
  if (worst[0] > 0) machine.step_s = worst[0];
  machine.node_bytes_per_s = 1 / worst[1];
  machine.reduce_bytes_per_s = 1 / worst[2];
  if (c.topology().nodes() == 1) return machine;
  machine.link = {1 / worst[4], worst[3]};
  machine.message_s = worst[5];
  return machine;
}

void get_to_know_link(Context& c) {
  if (c.learned().link.was_told()) return;
  std::array<double, 3> worst{};
  if (c.topology().is_leader()) worst = measure_wire(c);
  agree_on(c, worst, ReduceOp::kMax);
  c.learned().link.told(1 / worst[1], worst[0]);
}

}  // namespace accdp
