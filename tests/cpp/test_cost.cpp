// Costs and choices: by hand, for many shapes, and plans against what groups then do, up to eight ranks.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/deadline.hpp"
#include "coll/plan.hpp"
#include "ranks.hpp"

using namespace accdp;

namespace {

Shape shape_of(int nodes, int k) { return {nodes, k, nodes * k, 1 << 20, 16 << 10, k}; }

void by_hand() {
  Machine m;
  m.link = {1e9, 100e-6};
  m.message_s = 10e-6;
  CHECK(exchange_seconds(0, 1e6, m) == 0);
  CHECK(std::abs(exchange_seconds(1, 1e6, m) - 1.1e-3) < 1e-9);
  CHECK(std::abs(exchange_seconds(3, 0, m) - 140e-6) < 1e-9);  // sent and received: twice 10 us each
  CHECK(lanes_for(1 << 20, shape_of(2, 4)) == 4 && lanes_for(1 << 10, shape_of(2, 4)) == 1);
  CHECK(lanes_for(1 << 20, shape_of(32, 4)) == 1);
  CHECK(lanes_for(1 << 20, {2, 0, 3, 1 << 20, 16 << 10, 2}) == 1);
  CHECK(frame_bytes_for(64 << 20, shape_of(4, 1), 1) == 256 << 10);
  CHECK(frame_bytes_for(64 << 20, shape_of(1024, 1), 1) == 16 << 10);
  CHECK_THROWS(reduce_estimate(ReduceAlgorithm::kMpi, 8, shape_of(2, 1), m), UsageError, "algorithm=mpi");
}

/// Whatever the shape and size, the choice is one of those that are offered and possible, and the cheapest of them.
void choices() {
  for (int nodes : {2, 3, 4, 7, 64, 1000, 4096})
    for (int k : {1, 2, 5})
      for (std::size_t bytes : {0, 8, 1000, 4096, 100'000, 1 << 20, 64 << 20}) {
        const Shape shape = shape_of(nodes, k);
        const Choice choice = choose_allreduce(bytes, shape, {});
        CHECK(choice.seconds > 0 && may_reduce_by(choice.algorithm, bytes, shape));
        for (const ReduceAlgorithmRow& row : reduce_algorithm_rows())
          if (row.is_offered && may_reduce_by(row.id, bytes, shape))
            CHECK(reduce_estimate(row.id, bytes, shape, {}).seconds >= choice.seconds);
      }
}

/// However long a message and however many nodes: in no time, and time grows with bytes.
void plans_of_any_size() {
  const Shape shape = shape_of(4096, 8);
  for (OpKind op : planned_ops()) {
    const double gib = plan_of(op, std::size_t{1} << 30, shape, {}).chosen.estimate.seconds;
    const auto began = Clock::now();
    const double tib = plan_of(op, std::size_t{1} << 40, shape, {}).chosen.estimate.seconds;
    CHECK(Clock::now() - began < std::chrono::milliseconds(500));
    CHECK(tib > 500 * gib && tib < 1100 * gib);
  }
}

/// What node 0 sends on a ring, share by share.
void ring_bytes() {
  for (int nodes : {2, 3, 4, 7})
    for (std::size_t bytes : {0, 16, 64, 200, 1000, 4096}) {
      const std::size_t each = (bytes / nodes / 64 + 1) * 64;
      auto share = [&](int node) { return std::min(each, bytes - std::min(bytes, node * each)); };
      std::size_t sent = 0;
      for (int node = 0; node < nodes; ++node) sent += (node != 0 ? share(node) : 0) + (node != 1 ? share(node) : 0);
      CHECK(reduce_estimate(ReduceAlgorithm::kRing, bytes, shape_of(nodes, 1), {}).wire_bytes == sent);
    }
}

void as_planned(const std::vector<int>& nodes) {
  run_nodes(nodes, [&](Group& group) {
    for (std::size_t count : {0, 16, 250, 3000, 100'000}) {
      std::vector<float> data(count * group.size(), 1);
      const Bytes bytes = std::as_writable_bytes(std::span(data));
      for (OpKind op : {OpKind::kAllreduce, OpKind::kReduce, OpKind::kBcast}) {
        const Plan plan = plan_of(op, bytes.size(), group.shape(), group.machine());
        if (op == OpKind::kAllreduce) group.allreduce(bytes, bytes, Datatype::kF32, ReduceOp::kMax);
        if (op == OpKind::kReduce) group.reduce(bytes, bytes, Datatype::kF32, ReduceOp::kMax, 0);
        if (op == OpKind::kBcast) group.bcast(bytes, Datatype::kF32, 0);
        const Group::Run& run = group.last_run();
        CHECK(run.way.algorithm == plan.chosen.algorithm && run.way.lanes == plan.chosen.lanes);
        CHECK(run.way.chunk_bytes == plan.chosen.estimate.chunk_bytes);
        if (group.topology().node() == 0) CHECK(run.steps == plan.chosen.estimate.steps);
      }
    }
  });
}

}  // namespace

int main() {
  by_hand();
  choices();
  plans_of_any_size();
  ring_bytes();
  for (const std::vector<int>& nodes : {std::vector{0},
                                        {0, 1},
                                        {0, 1, 2},
                                        {0, 0, 1, 1},
                                        {0, 1, 0},
                                        {0, 1, 2, 3},
                                        {0, 0, 0, 1, 1, 1},
                                        {0, 1, 0, 1, 0, 2},
                                        {0, 0, 0, 0, 1, 1, 1, 1},
                                        {0, 1, 2, 3, 4, 5, 6, 7}})
    as_planned(nodes);
}
