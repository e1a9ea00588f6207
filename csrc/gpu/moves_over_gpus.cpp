// Gather, scatter and alltoall on device memory of ranks in several GPU groups. A segment has a piece of each block
// that one rank has for another; segments in a pipeline, whose phases are:
//   1. in each group, through the pool: each rank shows its pieces for the others of the group, which take them; its
//      pieces for all other ranks it copies to the host;
//   2. on a node with several groups, through slots in host memory: each rank takes the pieces for it;
//   3. between nodes: one message for each piece, from the rank that has it to the rank that wants it;
//   4. what came is copied to the device.
// Cost: what ranks of a group have for each other never leaves the device; all else passes once out of a GPU and once
// into one, and what is for other nodes once over the wire. 1 step of the pool and, where the node has several groups,
// 1 of the host for each segment.
#include <algorithm>
#include <cstring>

#include "base/rounding.hpp"
#include "coll/algorithms.hpp"
#include "gpu/gpu_pipeline.hpp"
#include "gpu/shared_gpu.hpp"
#include "node/copies.hpp"

namespace accdp {
namespace {

class MovePipeline : GpuSegments {
 public:
  /// Blocks by group rank; those that are not there are empty.
  MovePipeline(Context& c, Pool& pool, GpuHierarchy& hierarchy, const std::vector<ConstBytes>& ins,
               const std::vector<Bytes>& outs)
      : GpuSegments(c, pool, hierarchy, 2 * ins.size() * gpu_piece_bytes(c, hierarchy)),
        t_(c.topology()),
        ins_(ins),
        outs_(outs),
        most_(gpu_piece_bytes(c, hierarchy)),
        messages_(kAhead + 1) {
    const std::vector<int>& mates = groups_.mates();
    place_ = std::find(mates.begin(), mates.end(), me()) - mates.begin();
    for (int i = 1; i < t_.size(); ++i) {  // each rank begins with another peer
      const int rank = (t_.rank() + i) % t_.size();
      if (!t_.is_near(rank))
        far_.push_back(rank);
      else if (groups_.of(t_.local_of(rank)) != groups_.mine())
        apart_.push_back(rank);
    }
  }
  MovePipeline(const MovePipeline&) = delete;
  ~MovePipeline() {
    // After a failure; else all are complete.
    for (std::vector<Wire::Request>& requests : messages_)
      for (Wire::Request& request : requests) c_.abandon(request);
  }

  /// longest: the longest block that a rank of this node has for another rank or expects of one.
  void run(std::size_t longest) {
    const int rank = t_.rank();
    copy_async(outs_[rank].data(), ins_[rank].data(), ins_[rank].size(), pool_.stream());
    GpuSegments::run(
        ceil_div(longest, most_), [&](std::size_t i) { fetch(i); }, [&](std::size_t i) { start(i); },
        [&](std::size_t i) { finish(i); });
  }

 private:
  ConstBytes given(std::size_t segment, int rank) const { return piece(ins_[rank], segment * most_, most_); }
  Bytes taken(std::size_t segment, int rank) const { return piece(outs_[rank], segment * most_, most_); }
  Bytes outgoing(std::size_t segment, int rank) const {
    return rooms_.room(segment).subspan(rank * most_, given(segment, rank).size());
  }
  Bytes incoming(std::size_t segment, int rank) const {
    return rooms_.room(segment).subspan((ins_.size() + rank) * most_, taken(segment, rank).size());
  }
  void copy_piece(std::byte* to, const std::byte* from, std::size_t bytes) {
    copy_async(to, from, bytes, pool_.stream());
  }
  void fetch_to_room(std::size_t segment, const std::vector<int>& ranks) {
    for (int rank : ranks) {
      const ConstBytes part = given(segment, rank);
      copy_piece(outgoing(segment, rank).data(), part.data(), part.size());
    }
  }
  void deliver(std::size_t segment, const std::vector<int>& ranks) {
    for (int rank : ranks) {
      const Bytes part = taken(segment, rank);
      copy_piece(part.data(), incoming(segment, rank).data(), part.size());
    }
  }

  void fetch(std::size_t segment) {
    const std::vector<int>& mates = groups_.mates();
    std::byte* const slot = pool_.open(c_);
    for (std::size_t i = 0; i < mates.size(); ++i) {
      const ConstBytes part = given(segment, t_.neighbours()[mates[i]]);
      if (mates[i] != me()) copy_piece(slot + i * most_, part.data(), part.size());
    }
    pool_.publish(c_);
    pool_.await_all(c_);
    for (int mate : mates) {
      const Bytes part = taken(segment, t_.neighbours()[mate]);
      if (mate != me()) copy_piece(part.data(), pool_.slot(mate) + place_ * most_, part.size());
    }
    fetch_to_room(segment, apart_);
    fetch_to_room(segment, far_);
    mark(segment);
  }

  void start(std::size_t segment) {
    settle(segment);  // also what used the room before
    if (is_apart()) pass_on_node(segment);
    std::vector<Wire::Request>& requests = messages_[segment % messages_.size()];
    for (int rank : far_) {
      const Bytes to = incoming(segment, rank), from = outgoing(segment, rank);
      if (!to.empty()) requests.push_back(c_.irecv({rank, to}));
      if (!from.empty()) requests.push_back(c_.isend({rank, from}));
    }
  }

  void pass_on_node(std::size_t segment) {
    std::byte* const slot = c_.open(t_.local_size() * most_);
    for (int rank : apart_) {
      c_.write(slot + t_.local_of(rank) * most_, outgoing(segment, rank), t_.local_of(rank));
    }
    c_.publish();
    c_.await_all();
    for (int rank : apart_) {
      const Bytes part = incoming(segment, rank);
      copy_lines(part.data(), c_.slot(t_.local_of(rank)) + me() * most_, part.size());
    }
  }

  void finish(std::size_t segment) {
    std::vector<Wire::Request>& requests = messages_[segment % messages_.size()];
    for (Wire::Request& request : requests) c_.wait(request);
    requests.clear();
    deliver(segment, apart_);
    deliver(segment, far_);
    mark(segment);  // of whoever uses the room next, perhaps another call
  }

  const Topology& t_;
  const std::vector<ConstBytes>& ins_;
  const std::vector<Bytes>& outs_;
  const std::size_t most_;        // bytes of a piece
  std::size_t place_;             // of this rank in its group
  std::vector<int> apart_, far_;  // ranks of other groups of the node, and of other nodes
  std::vector<std::vector<Wire::Request>> messages_;
};

void begin(Context& c, const GpuHierarchy& hierarchy) { c.note({"gpu_pairs", 1, gpu_piece_bytes(c, hierarchy)}); }

}  // namespace

/// Nobody sends before the leaders have compared signatures, in the first two steps.
void move_over_gpus(Context& c, Pool& pool, GpuHierarchy& hierarchy, const std::vector<ConstBytes>& ins,
                    const std::vector<Bytes>& outs, std::size_t longest) {
  begin(c, hierarchy);
  c.meet();
  MovePipeline(c, pool, hierarchy, ins, outs).run(longest);
}

void gather_over_gpus(Context& c, Pool& pool, GpuHierarchy& hierarchy, ConstBytes in, const std::vector<Bytes>& outs,
                      int root) {
  std::vector<ConstBytes> ins(c.topology().size());
  ins[root] = in;
  move_over_gpus(c, pool, hierarchy, ins, c.topology().rank() == root ? outs : std::vector<Bytes>(ins.size()),
                 in.size());
}

void scatter_over_gpus(Context& c, Pool& pool, GpuHierarchy& hierarchy, const std::vector<ConstBytes>& ins, Bytes out,
                       int root) {
  std::vector<Bytes> outs(c.topology().size());
  outs[root] = out;
  move_over_gpus(c, pool, hierarchy, c.topology().rank() == root ? ins : std::vector<ConstBytes>(outs.size()), outs,
                 out.size());
}

void alltoall_over_gpus(Context& c, Pool& pool, GpuHierarchy& hierarchy, const std::vector<ConstBytes>& ins,
                        const std::vector<Bytes>& outs) {
  begin(c, hierarchy);
  compare_sizes(c, ins, outs);
  // Nodes may differ in the number of segments: each pair of ranks knows how many pieces go between them.
  std::size_t longest = 0;
  for (int rank = 0; rank < c.topology().size(); ++rank)
    if (rank != c.topology().rank()) longest = std::max({longest, ins[rank].size(), outs[rank].size()});
  std::memcpy(c.open(sizeof longest), &longest, sizeof longest);
  c.publish();
  c.await_all();
  for (int rank = 0; rank < c.local_size(); ++rank) {
    std::size_t theirs;
    std::memcpy(&theirs, c.slot(rank), sizeof theirs);
    longest = std::max(longest, theirs);
  }
  MovePipeline(c, pool, hierarchy, ins, outs).run(longest);
}

}  // namespace accdp
