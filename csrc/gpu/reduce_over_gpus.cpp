// Allreduce and reduce on device memory of ranks in several GPU groups. Segments in a pipeline; phases of each:
//   1. in each group, through the pool: each rank reduces the lanes that it works for, and copies them to the host;
//      where a group is on several GPUs with several ranks, first over the ranks of each (gpu_steps.hpp);
//   2. on a node with several groups, through slots in host memory: each owner gets its lane from an agent of each
//      other group and reduces it, in the order of groups;
//   3. between nodes: wire_reduction.hpp, each owner for its lane;
//   4. back the same way: to the agents, and through the pool to all ranks of the group that want the result.
// All ranks get the same bits: each element is reduced by one rank of a group, one of a node and one over nodes, in
// order; in a group of several GPUs, by one rank on each before. 16-bit floats are rounded after each of these.
// Cost for k ranks in a group, g groups on a node, n nodes, S bytes: S/k bytes over PCIe out of and into each rank's
// GPU; 2*S*(n-1)/n bytes out of and into a node; 2 steps of the pool, 4 on a node where a group's GPUs are joined
// (Pool::joins_gpus()), and, for g > 1, 2 of the host for each segment.
#include <optional>

#include "gpu/gpu_pipeline.hpp"

namespace accdp {
namespace {

class ReducePipeline : GpuPipeline {
 public:
  ReducePipeline(Context& c, Pool& pool, GpuHierarchy& hierarchy, FrameGrid grid, ConstBytes in, Bytes out,
                 const Reduction& how, int receiver)
      : GpuPipeline(c, pool, hierarchy, std::move(grid)),
        in_(in),
        out_(out),
        how_(how),
        receiver_(receiver),
        workplace_(hierarchy, pool) {
    const Topology& t = c.topology();
    is_wanted_here_ = receiver < 0 || t.is_near(receiver);
    is_wanted_in_group_ = receiver < 0 || (is_wanted_here_ && groups_.of(t.local_of(receiver)) == groups_.mine());
    is_wanted_ = receiver < 0 || receiver == t.rank();
    if (t.nodes() > 1 && own_lane() >= 0)
      wire_.emplace(c, grid_, own_lane(), how, receiver < 0 ? -1 : t.node_of(receiver), kAhead, nullptr,
                    WireReduction::Part::kBoth, hierarchy.by_mpi_on_device ? &workplace_ : nullptr);
  }

  void run() {
    GpuPipeline::run([&](std::size_t i) { fetch(i); }, [&](std::size_t i) { start(i); },
                     [&](std::size_t i) { finish(i); });
  }

 private:
  void fetch(std::size_t segment) {
    const FrameGrid::Cut all = grid_.segment(segment);
    copy_async(pool_.open(c_), in_.data() + all.begin, all.bytes, pool_.stream());
    pool_.publish(c_);
    pool_.await_all(c_);
    sum_in_group(segment, how_);
    mark(segment);
  }

  void start(std::size_t segment) { start_reduction(segment, wire_ ? &*wire_ : nullptr, how_); }

  void finish(std::size_t segment) {
    if (wire_) wire_->finish(segment);
    if (!is_wanted_here_) return;
    if (is_apart()) hand_to_agents(segment, is_wanted_in_group_);
    show(segment, is_wanted_in_group_);
    take_lanes(segment, is_wanted_ ? out_ : Bytes(), receiver_ < 0);
  }

  ConstBytes in_;
  Bytes out_;
  const Reduction how_;
  const int receiver_;
  bool is_wanted_here_, is_wanted_in_group_, is_wanted_;
  DeviceWorkplace workplace_;
  std::optional<WireReduction> wire_;
};

}  // namespace

void reduce_over_gpus(Context& c, Pool& pool, GpuHierarchy& hierarchy, ConstBytes in, Bytes out, const Reduction& how,
                      int receiver) {
  const int nodes = c.shape().nodes, lanes = pool.groups().lanes();
  const std::size_t frame = gpu_frame_bytes(hierarchy, std::size_t(nodes) * lanes);
  c.note({"gpu_lanes", lanes, frame});
  c.meet();  // and the pool's first step: nobody sends before the leaders have compared signatures
  ReducePipeline(c, pool, hierarchy, FrameGrid::even(in.size(), frame, nodes, lanes), in, out, how, receiver).run();
}

}  // namespace accdp
