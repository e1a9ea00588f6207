#pragma once
#include <vector>

#include "coll/wire_reduction.hpp"
#include "gpu/gpu_steps.hpp"

namespace accdp {

/// Memory for the segments that are under way between GPU groups: pinned host memory, or device memory where MPI takes
/// that. Kept from one call to the next.
class SegmentRooms {
 public:
  /// Room for `count` segments. Contents are lost where more is needed than before, which waits for the stream.
  void reserve(std::size_t segment_bytes, std::size_t count, bool on_device, cudaStream_t stream);
  Bytes room(std::size_t i) const { return {data_ + i % count_ * segment_bytes_, segment_bytes_}; }
  /// When the work on streams that a room was used in is done: recorded by its user.
  const Event& settled(std::size_t i) const { return settled_[i % count_]; }
  /// Device memory until the end of the call. As reserve() where there was less.
  Bytes scratch(std::size_t bytes, cudaStream_t stream);
  void release_scratch() { scratch_used_ = 0; }
  /// After a failure MPI may still write there: the memory is never freed.
  void abandon();

 private:
  std::byte* data_ = nullptr;
  std::size_t segment_bytes_ = 0, count_ = 1;
  bool on_device_ = false;
  PinnedBuffer pinned_;
  DeviceBuffer device_;
  std::vector<Event> settled_;
  std::vector<DeviceBuffer> scratch_;
  std::size_t scratch_used_ = 0;
};

/// How a group's calls go where its ranks are in several GPU groups: on several nodes, or on GPUs of a node that do not
/// all reach each other. There are as many lanes as the node with the fewest ranks has: one per rank where nodes are
/// alike.
struct GpuHierarchy {
  bool by_mpi_on_device = false;  ///< MPI sends and receives device memory
  std::size_t segment_bytes = 0;  ///< at most; what fits into a slot of the pool, and of the host where it goes there
  Stream wire_stream;             ///< for work on what came from other nodes
  SegmentRooms rooms;
  DeviceBuffer contributions;  ///< of all ranks, to what this rank reduces in rank order
  DeviceBuffer unwanted;       ///< what it reduces so for another rank
};

/// Where frames that came from other nodes into device memory are reduced.
class DeviceWorkplace final : public WireReduction::Workplace {
 public:
  DeviceWorkplace(GpuHierarchy& hierarchy, const Pool& pool) : hierarchy_(hierarchy), pool_(pool) {}
  Bytes scratch(std::size_t bytes) override { return hierarchy_.rooms.scratch(bytes, pool_.stream()); }
  void reduce(void* dst, std::span<const void* const> srcs, std::size_t count, const Reduction& how) override;

 private:
  GpuHierarchy& hierarchy_;
  const Pool& pool_;
};

/// Segments that go between GPU groups and nodes in a pipeline: while the wire carries some, the device works on the
/// next. Each has a room.
class GpuSegments {
 protected:
  GpuSegments(Context& c, Pool& pool, GpuHierarchy& hierarchy, std::size_t room_bytes);

  /// For every segment in order: fetch(i), start(i) one segment later, finish(i) kAhead segments later.
  template <class Fetch, class Start, class Finish>
  void run(std::size_t segments, Fetch fetch, Start start, Finish finish) {
    abandoning([&] {
      for (std::size_t i = 0; i < segments + kAhead; ++i) {
        if (i < segments) fetch(i);
        if (i > 0 && i <= segments) start(i - 1);
        if (i >= kAhead) finish(i - kAhead);
      }
    });
    rooms_.release_scratch();
  }

  /// Where a rank is missing, MPI may go on with the rooms.
  template <class Work>
  void abandoning(Work work) {
    try {
      work();
    } catch (...) {
      rooms_.abandon();
      throw;
    }
  }

  bool is_apart() const { return groups_.count() > 1; }  ///< whether the node has several GPU groups
  int me() const { return c_.local_rank(); }
  void mark(std::size_t segment) { record(rooms_.settled(segment), pool_.stream()); }
  void settle(std::size_t segment) { synchronize(rooms_.settled(segment)); }

  static constexpr std::size_t kAhead = 3;  // segments on the wire

  Context& c_;
  Pool& pool_;
  const GpuGroups& groups_;
  GpuHierarchy& hierarchy_;
  SegmentRooms& rooms_;
};

/// What pipelines of lanes have in common. A segment has a cut for each lane. In its group each rank works for the
/// lanes that GpuGroups says; between the groups of a node cuts go through slots in host memory, between nodes owners
/// of lanes send theirs.
class GpuPipeline : protected GpuSegments {
 protected:
  GpuPipeline(Context& c, Pool& pool, GpuHierarchy& hierarchy, FrameGrid grid);

  template <class Fetch, class Start, class Finish>
  void run(Fetch fetch, Start start, Finish finish) {
    GpuSegments::run(grid_.segments(), fetch, start, finish);
  }

  int own_lane() const { return groups_.own_lane(); }  ///< -1: none, and this rank does not speak with other nodes
  FrameGrid::Cut cut(std::size_t segment, int lane) const { return grid_.lane(segment, lane); }
  /// Where a lane's part of a segment begins in a slot or room.
  std::size_t offset(std::size_t segment, int lane) const {
    return cut(segment, lane).begin - grid_.segment(segment).begin;
  }
  Bytes room(std::size_t segment) const { return rooms_.room(segment).first(grid_.segment(segment).bytes); }
  Bytes room(std::size_t segment, int lane) const {
    return room(segment).subspan(offset(segment, lane), cut(segment, lane).bytes);
  }
  /// The own lane; empty where this rank has none.
  Bytes own_room(std::size_t segment) const { return own_lane() < 0 ? Bytes() : room(segment, own_lane()); }
  /// Reduces the lanes that this rank works for over the slots of the group, which all have written, into the room; on
  /// GPUs that reach each other first over the ranks of each, in a step.
  void sum_in_group(std::size_t segment, const Reduction& how);
  /// Reduces the own lane over the groups of the node, which have handed it over.
  void sum_of_groups(std::size_t segment, const Reduction& how);
  /// What follows the reduction of a segment in each group: over the groups of the node, then over the wire, if there
  /// are other nodes, which is there on ranks that own a lane.
  void start_reduction(std::size_t segment, WireReduction* wire, const Reduction& how);

  // Steps of the whole node.
  /// Agents hand other ranks of the node those ranks' lanes, if they give; then found(group) is this rank's own lane,
  /// from another group.
  void hand_to_owners(std::size_t segment, bool gives);
  ConstBytes found(std::size_t segment, int group) const;
  /// Owners hand out their lanes, and agents take those that they work for, if they want them.
  void hand_to_agents(std::size_t segment, bool wanted);
  /// Agents show the lanes that they work for to their group. gives: whether this rank's group has them.
  void show(std::size_t segment, bool gives);
  /// Then `out` takes all lanes; empty: it takes none. all_want: as all ranks of the group do.
  void take_lanes(std::size_t segment, Bytes out, bool all_want);

  const FrameGrid grid_;
};

/// Whether the pipelines may take a message of so many bytes. Shorter ones go whole through the host: there fewer
/// messages count for more than bytes. All ranks find the same.
bool goes_over_gpus(const Context& context, const GpuHierarchy& hierarchy, std::size_t bytes);
/// Bytes of a frame where a segment is one frame for each of `shares`; 0: they would be too short.
std::size_t gpu_frame_bytes(const GpuHierarchy& hierarchy, std::size_t shares);

/// Bytes of a piece of a block that one rank has for another, in the pipeline of gather, scatter and alltoall; 0: they
/// would be too short, and these are staged. Sizes do not matter, because each pair has a message of its own anyway.
inline std::size_t gpu_piece_bytes(const Context& c, const GpuHierarchy& hierarchy) {
  return gpu_frame_bytes(hierarchy, c.shape().ranks);
}

/// receiver: group rank, or -1 for all. Needs goes_over_gpus().
void reduce_over_gpus(Context& context, Pool& pool, GpuHierarchy& hierarchy, ConstBytes in, Bytes out,
                      const Reduction& how, int receiver);
/// The same, of blocks of any size.
void allgather_over_gpus(Context& context, Pool& pool, GpuHierarchy& hierarchy, ConstBytes in,
                         const std::vector<Bytes>& outs);
void reduce_scatter_over_gpus(Context& context, Pool& pool, GpuHierarchy& hierarchy, const std::vector<ConstBytes>& ins,
                              Bytes out, const Reduction& how);
void bcast_over_gpus(Context& context, Pool& pool, GpuHierarchy& hierarchy, Bytes data, int root);
/// As reduce_over_gpus and reduce_scatter_over_gpus, for up to kMostSources ranks, with the bits that the host's
/// reductions in rank order have: every element is reduced by one rank, over all contributions in the order of ranks.
void reduce_in_rank_order_over_gpus(Context& context, Pool& pool, GpuHierarchy& hierarchy, ConstBytes in, Bytes out,
                                    const Reduction& how, int receiver);
void reduce_scatter_in_rank_order_over_gpus(Context& context, Pool& pool, GpuHierarchy& hierarchy,
                                            const std::vector<ConstBytes>& ins, Bytes out, const Reduction& how);
/// These need gpu_piece_bytes() > 0. The first hands ins[r] to rank r, which has it in its outs[]; all ranks know the
/// sizes, at most `longest`.
void move_over_gpus(Context& context, Pool& pool, GpuHierarchy& hierarchy, const std::vector<ConstBytes>& ins,
                    const std::vector<Bytes>& outs, std::size_t longest);
void gather_over_gpus(Context& context, Pool& pool, GpuHierarchy& hierarchy, ConstBytes in,
                      const std::vector<Bytes>& outs, int root);
void scatter_over_gpus(Context& context, Pool& pool, GpuHierarchy& hierarchy, const std::vector<ConstBytes>& ins,
                       Bytes out, int root);
void alltoall_over_gpus(Context& context, Pool& pool, GpuHierarchy& hierarchy, const std::vector<ConstBytes>& ins,
                        const std::vector<Bytes>& outs);

}  // namespace accdp
