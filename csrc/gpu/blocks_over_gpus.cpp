// Allgather and reduce_scatter on device memory of ranks in several GPU groups. Segments in a pipeline, each with a
// frame of every node's blocks in every lane (coll/block_frames.hpp). Phases of a segment:
//   1. in each group, through the pool: reduce_scatter: each rank reduces the lanes that it works for; allgather: each
//      shows what its block has of the segment, the others of the group take it; both copy the lanes that they work
//      for to the host;
//   2. on a node with several groups, through slots in host memory: each owner of a lane gets it from the agents;
//   3. between nodes: wire_reduction.hpp, its first or second half, each owner for its lane;
//   4. back the same way; each rank takes what is of its block, or the blocks of other groups.
// Cost for k ranks in a group, S bytes of all blocks: S/k bytes over PCIe out of and into each rank's GPU; between
// nodes as on the host (coll/reduce_scatter.cpp, coll/allgather.cpp).
#include <optional>

#include "coll/block_frames.hpp"
#include "device/cuda_reduce.hpp"
#include "gpu/gpu_pipeline.hpp"

namespace accdp {
namespace {

using Part = BlockFrames::Part;

class BlockPipeline : protected GpuPipeline {
 protected:
  BlockPipeline(Context& c, Pool& pool, GpuHierarchy& hierarchy, const BlockFrames& frames, const Reduction& how,
                WireReduction::Part part)
      : GpuPipeline(c, pool, hierarchy, frames.grid()), frames_(frames), workplace_(hierarchy, pool) {
    if (c.topology().nodes() > 1 && own_lane() >= 0)
      wire_.emplace(c, grid_, own_lane(), how, -1, kAhead, nullptr, part,
                    hierarchy.by_mpi_on_device ? &workplace_ : nullptr);
  }

  int group_of(const Part& part) const { return groups_.of(c_.topology().local_of(part.rank)); }
  bool is_near(const Part& part) const { return c_.topology().is_near(part.rank); }
  bool is_mine(const Part& part) const { return part.rank == c_.topology().rank(); }
  /// The parts of blocks in a lane; they lie from offset(segment, lane) on.
  template <class Visit>
  void visit(std::size_t segment, int lane, Visit each) const {
    frames_.visit(segment, cut(segment, lane), each);
  }
  void copy_part(std::byte* to, const std::byte* from, const Part& part) {
    copy_async(to, from, part.bytes, pool_.stream());
  }
  /// A part of a lane in a slot of the group.
  Shown shown(std::size_t segment, int holder, int lane, const Part& part, std::byte* to) const {
    const std::size_t at = offset(segment, lane) + part.at;
    return {holder, at, part.bytes, lane, at, to};
  }
  /// Back to the agents, and through the pool: parts of the segment go where place(part) says, null is nowhere.
  /// all_want: all ranks of the group want the same ones.
  template <class Place>
  void spread(std::size_t segment, bool all_want, Place place) {
    if (is_apart()) hand_to_agents(segment, true);
    show(segment, true);
    std::vector<Shown> parts;
    for (int lane = 0; lane < grid_.lanes(); ++lane)
      visit(segment, lane, [&](const Part& part) {
        if (std::byte* const to = place(part))
          parts.push_back(shown(segment, groups_.agent(groups_.mine(), lane), lane, part, to));
      });
    take_shown(c_, pool_, parts, all_want && pool_.joins_gpus());
  }

  const BlockFrames& frames_;
  DeviceWorkplace workplace_;
  std::optional<WireReduction> wire_;
};

class ScatterPipeline : BlockPipeline {
 public:
  ScatterPipeline(Context& c, Pool& pool, GpuHierarchy& hierarchy, const BlockFrames& frames,
                  const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how)
      : BlockPipeline(c, pool, hierarchy, frames, how, WireReduction::Part::kScatter),
        ins_(ins),
        out_(out),
        how_(how) {}

  void run() {
    GpuPipeline::run([&](std::size_t i) { fetch(i); }, [&](std::size_t i) { start(i); },
                     [&](std::size_t i) { finish(i); });
  }

 private:
  void fetch(std::size_t segment) {
    std::byte* const slot = pool_.open(c_);
    for (int lane = 0; lane < grid_.lanes(); ++lane)
      visit(segment, lane, [&](const Part& part) {
        copy_part(slot + offset(segment, lane) + part.at, ins_[part.rank].data() + part.offset, part);
      });
    pool_.publish(c_);
    pool_.await_all(c_);
    sum_in_group(segment, how_);
    mark(segment);
  }

  void start(std::size_t segment) { start_reduction(segment, wire_ ? &*wire_ : nullptr, how_); }

  void finish(std::size_t segment) {
    if (wire_) wire_->finish(segment);
    spread(segment, false, [&](const Part& part) { return is_mine(part) ? out_.data() + part.offset : nullptr; });
  }

  const std::vector<ConstBytes>& ins_;
  Bytes out_;
  const Reduction how_;
};

class GatherPipeline : BlockPipeline {
 public:
  GatherPipeline(Context& c, Pool& pool, GpuHierarchy& hierarchy, const BlockFrames& frames, ConstBytes in,
                 const std::vector<Bytes>& outs)
      : BlockPipeline(c, pool, hierarchy, frames, {Datatype::kBytes, ReduceOp::kSum}, WireReduction::Part::kGather),
        in_(in),
        outs_(outs) {}

  void run() {
    copy_async(outs_[c_.topology().rank()].data(), in_.data(), in_.size(), pool_.stream());
    GpuPipeline::run([&](std::size_t i) { fetch(i); }, [&](std::size_t i) { start(i); },
                     [&](std::size_t i) { finish(i); });
  }

 private:
  bool is_in_group(const Part& part) const { return is_near(part) && group_of(part) == groups_.mine(); }

  void fetch(std::size_t segment) {
    std::byte* const slot = pool_.open(c_);
    for (int lane = 0; lane < grid_.lanes(); ++lane)
      visit(segment, lane, [&](const Part& part) {
        if (is_mine(part)) copy_part(slot + offset(segment, lane) + part.at, in_.data() + part.offset, part);
      });
    pool_.publish(c_);
    pool_.await_all(c_);
    std::vector<Shown> parts;
    for (int lane = 0; lane < grid_.lanes(); ++lane) {
      const bool is_agent = groups_.agent(groups_.mine(), lane) == me();
      visit(segment, lane, [&](const Part& part) {
        if (!is_in_group(part)) return;
        const int holder = c_.topology().local_of(part.rank);
        std::byte* const to = is_mine(part) ? nullptr : outs_[part.rank].data() + part.offset;
        parts.push_back(shown(segment, holder, lane, part, to));
        if (is_agent) parts.back().also = room(segment, lane).data() + part.at;
      });
    }
    take_shown(c_, pool_, parts, pool_.joins_gpus());
    mark(segment);
  }

  void start(std::size_t segment) {
    settle(segment);
    if (is_apart()) {
      hand_to_owners(segment, true);
      if (own_lane() >= 0) take_of_other_groups(segment);
    }
    if (wire_) wire_->start(segment, room(segment));
  }

  void take_of_other_groups(std::size_t segment) {
    visit(segment, own_lane(), [&](const Part& part) {
      if (!is_near(part) || is_in_group(part)) return;
      const ConstBytes theirs = found(segment, group_of(part)).subspan(part.at, part.bytes);
      copy(own_room(segment).subspan(part.at, part.bytes), theirs);
    });
  }

  void finish(std::size_t segment) {
    if (wire_) wire_->finish(segment);
    spread(segment, true,
           [&](const Part& part) { return is_in_group(part) ? nullptr : outs_[part.rank].data() + part.offset; });
  }

  ConstBytes in_;
  const std::vector<Bytes>& outs_;
};

template <class Block>
BlockFrames cut_for_gpus(Context& c, const Pool& pool, const GpuHierarchy& hierarchy,
                         const std::vector<Block>& blocks) {
  std::vector<std::size_t> bytes;
  for (const Block& block : blocks) bytes.push_back(block.size());
  const int lanes = pool.groups().lanes();
  const BlockFrames frames(c.topology(), bytes, hierarchy.segment_bytes, lanes);
  c.note({"gpu_lanes", lanes, frames.grid().largest()});
  c.meet();  // and the pool's first step: nobody sends before the leaders have compared signatures
  return frames;
}

}  // namespace

void allgather_over_gpus(Context& c, Pool& pool, GpuHierarchy& hierarchy, ConstBytes in,
                         const std::vector<Bytes>& outs) {
  const BlockFrames frames = cut_for_gpus(c, pool, hierarchy, outs);
  GatherPipeline(c, pool, hierarchy, frames, in, outs).run();
}

void reduce_scatter_over_gpus(Context& c, Pool& pool, GpuHierarchy& hierarchy, const std::vector<ConstBytes>& ins,
                              Bytes out, const Reduction& how) {
  const BlockFrames frames = cut_for_gpus(c, pool, hierarchy, ins);
  ScatterPipeline(c, pool, hierarchy, frames, ins, out, how).run();
}

}  // namespace accdp
