// Broadcast of device memory to ranks in several GPU groups. Segments in a pipeline; phases of each:
//   1. on the root's node: the root copies it into its slot of the pool, the others of its group copy it out, and each
//      copies the lanes that it works for to the host, from where ranks of other groups take theirs (host slots);
//   2. between nodes, in each lane: along a chain or a binomial tree, whichever the model says is faster;
//   3. in each other group: lanes go to their agents (host slots, where the node has several groups), from them to the
//      device and through the pool to all ranks.
// Cost for k ranks in a group, S bytes: S/k bytes over PCIe out of each GPU of the root's group and into each of
// the others; S bytes into each node. For each segment 1 step of the pool, and on nodes with several groups 2 of the
// host, on the root's then 2 of the pool; twice as many of the pool where a group's GPUs are joined (joins_gpus()).
#include "coll/algorithms.hpp"
#include "coll/schedule.hpp"
#include "gpu/gpu_pipeline.hpp"

namespace accdp {
namespace {

class BcastPipeline : GpuPipeline {
 public:
  BcastPipeline(Context& c, Pool& pool, GpuHierarchy& hierarchy, FrameGrid grid, Bytes data, int root)
      : GpuPipeline(c, pool, hierarchy, std::move(grid)), data_(data), messages_(kAhead + 1) {
    const Topology& t = c.topology();
    is_near_ = t.is_near(root);
    root_ = is_near_ ? t.local_of(root) : -1;
    has_root_ = is_near_ && groups_.of(root_) == groups_.mine();
    const int nodes = t.nodes(), root_node = t.node_of(root);
    if (nodes == 1 || own_lane() < 0) return;
    auto seconds = [&](BcastAlgorithm way) {
      return bcast_seconds(way, nodes, grid_.segments(), static_cast<double>(data.size()), c.machine().link);
    };
    const bool by_tree = seconds(BcastAlgorithm::kBinomial) < seconds(BcastAlgorithm::kChain);
    auto peer = [&](int place) { return t.speaker((root_node + place) % nodes, own_lane(), groups_.lanes()); };
    // The same for every segment.
    const Hop hop = bcast_schedule(by_tree ? BcastAlgorithm::kBinomial : BcastAlgorithm::kChain, nodes,
                                   (t.node() - root_node + nodes) % nodes, 1)[0];
    if (hop.from >= 0) from_ = peer(hop.from);
    for (int place : hop.to) to_.push_back(peer(place));
  }
  BcastPipeline(const BcastPipeline&) = delete;
  ~BcastPipeline() {
    // After a failure; else all are complete.
    for (Messages& m : messages_) {
      c_.forget(m.incoming);
      for (Wire::Request& request : m.outgoing) c_.abandon(request);
    }
  }

  void run() {
    GpuPipeline::run([&](std::size_t i) { fetch(i); }, [&](std::size_t i) { start(i); },
                     [&](std::size_t i) { finish(i); });
    abandoning([&] {
      for (std::size_t room = 0; room < messages_.size(); ++room) wait_for_sends(room);
    });
  }

 private:
  struct Messages {
    Wire::Request incoming;
    std::vector<Wire::Request> outgoing;
  };
  Messages& messages(std::size_t segment) { return messages_[segment % messages_.size()]; }

  void wait_for_sends(std::size_t segment) {
    for (Wire::Request& request : messages(segment).outgoing) c_.wait(request);
    messages(segment).outgoing.clear();
  }

  void fetch(std::size_t segment) {
    wait_for_sends(segment);  // of the segment that was in this room before
    if (!is_near_) return;
    const FrameGrid::Cut all = grid_.segment(segment);
    std::byte* const slot = pool_.open(c_);
    if (me() == root_) copy_async(slot, data_.data() + all.begin, all.bytes, pool_.stream());
    pool_.publish(c_);
    pool_.await_all(c_);
    std::vector<Shown> parts;
    for (int lane = 0; has_root_ && lane < grid_.lanes(); ++lane) {
      const FrameGrid::Cut part = cut(segment, lane);
      const std::size_t at = offset(segment, lane);
      parts.push_back({root_, at, part.bytes, lane, at, me() == root_ ? nullptr : data_.data() + part.begin});
    }
    if (has_root_)
      for (int lane : groups_.lanes_of(me())) parts[lane].also = room(segment, lane).data();
    take_shown(c_, pool_, parts, pool_.joins_gpus());  // a step of all groups
    if (has_root_) mark(segment);
  }

  void start(std::size_t segment) {
    settle(segment);  // also what used the room before
    if (is_near_ && is_apart()) {
      hand_to_owners(segment, has_root_);
      if (!has_root_ && own_lane() >= 0) {
        const ConstBytes mine = found(segment, groups_.of(root_));
        copy(own_room(segment), mine);
      }
    }
    const Bytes mine = own_room(segment);
    if (from_ >= 0 && !mine.empty()) messages(segment).incoming = c_.irecv({from_, mine});
    if (from_ < 0) pass_on(segment);
  }

  void pass_on(std::size_t segment) {
    const Bytes mine = own_room(segment);
    for (int to : to_)
      if (!mine.empty()) messages(segment).outgoing.push_back(c_.isend({to, mine}));
  }

  void finish(std::size_t segment) {
    if (from_ >= 0) {
      c_.wait(messages(segment).incoming);
      pass_on(segment);
    }
    if (is_near_ && !is_apart()) return;  // all have it
    if (is_apart()) hand_to_agents(segment, !has_root_);
    show(segment, !has_root_);
    if (has_root_)
      take_shown(c_, pool_, {}, pool_.joins_gpus());  // the step in which other groups take theirs
    else
      take_lanes(segment, data_, true);
  }

  Bytes data_;
  bool is_near_, has_root_;
  int root_, from_ = -1;
  std::vector<int> to_;
  std::vector<Messages> messages_;
};

}  // namespace

void bcast_over_gpus(Context& c, Pool& pool, GpuHierarchy& hierarchy, Bytes data, int root) {
  const int lanes = pool.groups().lanes();
  const std::size_t frame = gpu_frame_bytes(hierarchy, lanes);
  c.note({"gpu_lanes", lanes, frame});
  // Nobody sends before the leaders have compared signatures, which they do in the first step.
  c.meet();
  c.meet();
  BcastPipeline(c, pool, hierarchy, FrameGrid::even(data.size(), frame, 1, lanes), data, root).run();
}

}  // namespace accdp
