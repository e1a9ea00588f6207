// Costs and choices: by hand, for many shapes, and plans against what groups then do, up to eight ranks.
#include <algorithm>
#include <barrier>
#include <bit>
#include <cmath>
#include <ctime>
#include <random>
#include <utility>

#include "base/settings.hpp"
#include "coll/block_costs.hpp"
#include "coll/meeting.hpp"
#include "coll/plan.hpp"
#include "ranks.hpp"

using namespace accdp;

namespace {

/// Cut as by default.
Shape shape_of(std::vector<Shape::Nodes> nodes) {
  return {std::move(nodes), std::size_t(Settings().chunk_bytes), std::size_t(Settings().flat_bytes)};
}
Shape shape_of(int nodes, int k) { return shape_of({{1, k}, {nodes - 1, k}}); }

void by_hand() {
  Machine m;
  m.link = {1e9, 100e-6};
  m.message_s = 10e-6;
  CHECK(exchange_seconds(0, 1e6, m) == 0);
  CHECK(std::abs(exchange_seconds(1, 1e6, m) - 1.1e-3) < 1e-9);
  CHECK(std::abs(exchange_seconds(3, 0, m) - 140e-6) < 1e-9);  // sent and received: twice 10 us each
  // All ranks where the link is faster than one of them, and where it makes next to no difference.
  Machine fast, slow;
  fast.link = {12.5e9, 5e-6};
  slow.link = {125e6, 50e-6};
  for (const Machine& any : {fast, slow})
    CHECK(lanes_for(64 << 20, shape_of(2, 4), any) == 4 && lanes_for(16 << 20, shape_of(16, 8), any) == 8);
  CHECK(lanes_for(64 << 10, shape_of(16, 8), fast) == 8 && lanes_for(64 << 10, shape_of(16, 8), slow) == 1);
  CHECK(lanes_for(1 << 20, shape_of({{1, 1}, {1, 2}}), fast) == 1);                         // not as many on each
  CHECK(!has_lanes(shape_of(256, 8)) && lanes_for(64 << 20, shape_of(256, 8), fast) == 1);  // no room in a slot
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
        const double seconds = reduce_estimate(choice.algorithm, bytes, shape, {}).seconds;
        CHECK(seconds > 0 && may_reduce_by(choice.algorithm, bytes, shape));
        for (const ReduceAlgorithmRow& row : reduce_algorithm_rows())
          if (row.is_offered && may_reduce_by(row.id, bytes, shape))
            CHECK(reduce_estimate(row.id, bytes, shape, {}).seconds >= seconds);
      }
}

/// Broadcasts between nodes.
void ways_of_a_bcast() {
  const LinkSpeed slow{125e6, 50e-6};
  // Long streams go by the chain, whose every link carries each byte once; a single frame by the tree.
  CHECK(choose_bcast(8, 256, 64 << 20, slow) == BcastAlgorithm::kChain);
  CHECK(choose_bcast(8, 1, 1000, slow) == BcastAlgorithm::kBinomial);
  CHECK(choose_bcast(2, 1, 1000, slow) == BcastAlgorithm::kChain);
  const double limit = (64 << 20) / slow.bytes_per_s;
  const double chain = bcast_seconds(BcastAlgorithm::kChain, 4, 256, 64 << 20, slow);
  CHECK(chain > limit && chain < 1.02 * limit);  // the latencies of frames that follow each other do not add up
  const double frame = slow.latency_s + (200 << 10) / slow.bytes_per_s;
  CHECK(std::abs(bcast_seconds(BcastAlgorithm::kBinomial, 4, 1, 200 << 10, slow) / (2 * frame) - 1) < 1e-9);
  CHECK(choose_bcast(4, 1, 200 << 10, slow) == BcastAlgorithm::kBinomial);
  CHECK(bcast_seconds(BcastAlgorithm::kBinomial, 4, 256, 64 << 20, slow) > 1.9 * limit);
}

/// Where ranks take turns on the cores, in slots; elsewhere some read while the source writes.
void pieces_on_a_node() {
  Shape shape = shape_of(1, 4);
  CHECK(node_bcast(256 << 10, shape, {}).steps == 8 && node_bcast(1 << 20, shape, {}).steps == 8);
  CHECK(node_bcast(64 << 20, shape, {}).chunk_bytes == 256 << 10);
  shape.is_crowded = true;
  CHECK(node_bcast(256 << 10, shape, {}).steps == 1 && node_bcast(4 << 20, shape, {}).steps == 4);
  for (std::size_t bytes : {40'000, 300'001}) {
    CHECK(node_bcast(bytes, shape, {}).steps == 1 && gather_by_pairs(bytes, shape, {}).steps == 1);
    CHECK(scatter_by_pairs(bytes / 2, shape, {}).steps == 1);
  }
  CHECK(scatter_by_pairs(4 << 10, shape_of(1, 64), {}).steps == 1);
}

/// What a node is shown lies in one slot; a rank alone on its node shows nothing.
void along_with_signatures() {
  const Shape shape = shape_of(2, 4);
  CHECK(goes_with_signatures(kMostCarriedBytes, shape.slot_bytes, shape));
  CHECK(!goes_with_signatures(kMostCarriedBytes, shape.slot_bytes + 1, shape));
  CHECK(!goes_with_signatures(kMostCarriedBytes + 1, shape.slot_bytes, shape));
  CHECK(goes_with_signatures(kMostCarriedBytes, shape.slot_bytes + 1, shape_of(2, 1)));
  CHECK(goes_with_signatures(1, 1, shape_of(kMeetingFanOut, 4)));
  CHECK(!goes_with_signatures(1, 1, shape_of(kMeetingFanOut + 1, 4)) && !goes_with_signatures(1, 1, shape_of(1, 4)));
}

/// However long a message and however many nodes: in no time, and time grows with bytes.
void plans_of_any_size() {
  const Shape shape = shape_of(4096, 8);
  for (OpKind op : planned_ops()) {
    // Of 16 GiB the way through 4096 nodes is a small part.
    const double shorter = plan_of(op, std::size_t{16} << 30, shape, {}, {}).chosen.estimate.seconds;
    const std::clock_t began = std::clock();  // the processor's time: others may have it meanwhile
    const double longer = plan_of(op, std::size_t{16} << 40, shape, {}, {}).chosen.estimate.seconds;
    CHECK(std::clock() - began < CLOCKS_PER_SEC / 2);
    CHECK(longer > 900 * shorter && longer < 1100 * shorter);
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

/// What ranks of nodes hand over and send, and how, is what the plan says of it.
class AsPlanned {
 public:
  explicit AsPlanned(const std::vector<int>& nodes, double cores = kOwnCores)
      : nodes_(nodes), cores_(cores), all_here_(std::ssize(nodes)), sent_(nodes.size()) {}

  void run(const std::vector<std::size_t>& counts, const std::vector<OpKind>& ops = planned_ops()) {
    const auto body = [&](Group& group) {
      for (std::size_t count : counts)
        for (OpKind op : ops) check(group, op, count);
    };
    run_nodes(nodes_, body, cores_);
  }

  /// As many bytes for each rank: the plan does not know which ranks have a line less.
  void run_in_rank_order(const std::vector<std::size_t>& lines) {
    const auto body = [&](Group& group) {
      group.set_deterministic(true);
      const std::size_t each = 64 / sizeof(float);
      for (std::size_t count : lines) {
        check(group, OpKind::kAllreduce, count * each * group.size());
        check(group, OpKind::kReduce, count * each * group.size());
        check(group, OpKind::kReduceScatter, count * each);
      }
    };
    run_nodes(nodes_, body, cores_);
  }

 private:
  static bool has_blocks(OpKind op) { return op == OpKind::kReduceScatter || op == OpKind::kAlltoall; }

  /// `count` floats in each block, or in all where there are none.
  static void operate(Group& group, OpKind op, std::size_t count) {
    std::vector<float> own(count), all(count * group.size());
    const Bytes mine = std::as_writable_bytes(std::span(own)), together = std::as_writable_bytes(std::span(all));
    std::vector<Bytes> outs;
    for (int rank = 0; rank < group.size(); ++rank) outs.push_back(together.subspan(rank * mine.size(), mine.size()));
    const std::vector<ConstBytes> ins(outs.begin(), outs.end());
    constexpr Datatype type = Datatype::kF32;
    switch (op) {
      case OpKind::kAllreduce: return group.allreduce(mine, mine, type, ReduceOp::kMax);
      case OpKind::kReduce: return group.reduce(mine, mine, type, ReduceOp::kMax, 0);
      case OpKind::kBcast: return group.bcast(mine, type, 0);
      case OpKind::kAllgather: return group.allgather(mine, outs, type);
      case OpKind::kReduceScatter: return group.reduce_scatter(ins, mine, type, ReduceOp::kMax);
      case OpKind::kAlltoall: return group.alltoall(ins, outs, type);
      case OpKind::kGather: return group.gather(mine, outs, type, 0);
      case OpKind::kScatter: return group.scatter(ins, mine, type, 0);
      default: CHECK(!"an operation that this test does not know");
    }
  }

  /// Node 0 sends none with what goes to it along with the signatures: who sends goes ahead.
  static std::size_t signature_bytes(OpKind op, const Alternative& way, std::size_t bytes, const Shape& shape) {
    const bool is_direct = way.algorithm == name_of(ReduceAlgorithm::kDirect);
    const bool by_tree = op == OpKind::kBcast && is_direct && bcasts_by_tree(bytes, shape);
    if (by_tree) return std::bit_width(unsigned(shape.nodes - 1)) * kSignatureBytes;
    if (op == OpKind::kReduce && is_direct && reduces_with_signatures(bytes, shape)) return 0;
    if (op == OpKind::kGather && is_direct) return 0;
    std::size_t messages = 0;
    for_meeting_rounds(shape.nodes, [&](int, int in_round) { messages += in_round; });
    return messages * kSignatureBytes;  // of node 0; at the hub as many
  }

  void check(Group& group, OpKind op, std::size_t count) {
    const std::size_t bytes = count * sizeof(float) * (has_blocks(op) ? group.size() : 1);
    const Alternative way = group.plan(op, bytes).chosen;
    operate(group, op, count);
    const Group::Run& run = group.last_run();
    sent_[group.rank()] = run.wire_bytes;
    all_here_.arrive_and_wait();
    CHECK(run.way.algorithm == way.algorithm && run.way.lanes == way.lanes);
    CHECK(run.way.chunk_bytes == way.estimate.chunk_bytes);
    if (group.topology().node() == 0) CHECK(run.steps == way.estimate.steps);
    std::size_t sent = 0;
    for (int rank : group.topology().members(0)) sent += sent_[rank];
    CHECK(sent == way.estimate.wire_bytes + signature_bytes(op, way, bytes, group.shape()));
    all_here_.arrive_and_wait();
  }

  const std::vector<int> nodes_;
  const double cores_;
  std::barrier<> all_here_;
  std::vector<std::size_t> sent_;
};

/// Up to eight ranks wherever they are, with chunks short and longer, and every way of an allreduce.
void any_ranks_anywhere() {
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return random() % n; };
  for (const auto& [slot, floats] : {std::pair<const char*, std::size_t>{"64k", 16 << 10}, {"4k", 1 << 10}})
    for (const ReduceAlgorithmRow& row : reduce_algorithm_rows()) {
      if (row.id == ReduceAlgorithm::kMpi) continue;
      set_setting("ACCDP_FLAT_BYTES", "1k");
      set_setting("ACCDP_CHUNK_BYTES", slot);
      set_setting("ACCDP_ALLREDUCE", row.name);
      for (int trial = 0; trial < 5; ++trial) {
        const std::size_t ranks = 1 + below(8), most_nodes = 1 + below(ranks);
        std::vector<int> nodes;
        for (std::size_t rank = 0; rank < ranks; ++rank) {  // nodes are numbered as they appear
          const int known = nodes.empty() ? 0 : *std::max_element(nodes.begin(), nodes.end()) + 1;
          nodes.push_back(std::min(known, static_cast<int>(below(most_nodes))));
        }
        AsPlanned(nodes, below(2) ? kSharedCores : kOwnCores)
            .run({0, 1, below(64), below(floats / 4), below(floats), below(4 * floats)});
        AsPlanned(nodes).run_in_rank_order({0, 1, below(8), below(floats / 16), below(floats / 4)});
      }
    }
}

/// So many ranks that a slot has no room for the sizes of what an alltoall sends.
void many_ranks() {
  set_setting("ACCDP_CHUNK_BYTES", "4k");
  std::vector<int> nodes(46);
  std::fill(nodes.begin() + 23, nodes.end(), 1);
  CHECK(!AlltoallCut(Shape::even(2, 23, 4096, std::size_t(Settings().flat_bytes))).by_leaders);
  AsPlanned(nodes).run({0, 1, 100}, {OpKind::kAlltoall});
  AsPlanned(nodes).run_in_rank_order({1, 2});
}

/// Messages that leaders hold piece by piece.
void pieces() {
  set_setting("ACCDP_CHUNK_BYTES", "1M");
  for (ReduceAlgorithm asked :
       {ReduceAlgorithm::kDirect, ReduceAlgorithm::kRecursiveDoubling, ReduceAlgorithm::kRing}) {
    set_setting("ACCDP_ALLREDUCE", name_of(asked));
    AsPlanned({0, 1, 0, 2}).run({(9 << 20) / sizeof(float) + 5});
  }
}

}  // namespace

int main() {
  by_hand();
  choices();
  ways_of_a_bcast();
  along_with_signatures();
  pieces_on_a_node();
  plans_of_any_size();
  ring_bytes();
  for (const std::vector<int>& nodes : {std::vector{0},
                                        {0, 1},
                                        {0, 0, 1, 1},
                                        {0, 1, 0, 1, 0, 2},
                                        {0, 1, 0, 2, 2, 2, 1, 3},
                                        {0, 0, 0, 0, 1, 1, 1, 1},
                                        {0, 1, 2, 3, 4, 5, 6, 7}})
    for (double cores : {kOwnCores, kSharedCores}) AsPlanned(nodes, cores).run({0, 16, 250, 3000, 20'000, 100'000});
  any_ranks_anywhere();
  pieces();
  many_ranks();
}
