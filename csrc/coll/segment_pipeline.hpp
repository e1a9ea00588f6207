#pragma once
#include <algorithm>
#include <vector>

#include "coll/context.hpp"
#include "coll/wire_reduction.hpp"

namespace accdp {

/// What pipelines over nodes have in common: who speaks for which lane, how many segments are under way, and memory for
/// them. While the wire carries some segments the node works on others.
class SegmentPipeline {
 public:
  /// How many segments are under way at once, of at most that many bytes each.
  static constexpr std::size_t under_way(std::size_t longest_bytes, std::size_t most = kAhead) {
    return std::clamp<std::size_t>(kMostInFlight / std::max<std::size_t>(longest_bytes, 1), 2, most);
  }

 protected:
  static constexpr std::size_t kAhead = 4;  // segments under way at once
  /// Of encoded ones: a segment takes the wire a fraction of the time, and ranks that share a core keep each other from
  /// it for several of these times.
  static constexpr std::size_t kAheadEncoded = 12;

  SegmentPipeline(Context& c, const FrameGrid& grid, std::size_t ahead = kAhead)
      : c_(c),
        grid_(grid),
        leader_(c.topology().leader(c.topology().node())),
        speaks_(grid.lanes() > 1 || leader_ == c.topology().rank()),
        longest_(grid.longest_segment()),
        ahead_(under_way(longest_, ahead)) {}

  /// begin(i) and, once no more may be under way, end(i), for all segments in order.
  template <class Begin, class End>
  void run(Begin begin, End end) {
    const std::size_t segments = grid_.segments();
    for (std::size_t i = 0; i < segments + ahead_ - 1; ++i) {
      if (i < segments) begin(i);
      if (i >= ahead_ - 1) end(i - (ahead_ - 1));
    }
  }

  int lane() const { return grid_.lanes() > 1 ? c_.local_rank() : 0; }
  /// Local rank that speaks for a lane.
  int speaker(int lane) const { return grid_.lanes() > 1 ? lane : c_.topology().local_of(leader_); }
  /// Memory for a segment until it has ended.
  Bytes room(std::size_t segment) {
    return c_.segment_room(segment % ahead_, longest_).first(grid_.segment(segment).bytes);
  }

  Context& c_;
  const FrameGrid& grid_;
  const int leader_;
  const bool speaks_;
  const std::size_t longest_, ahead_;

 private:
  static constexpr std::size_t kMostInFlight = 16 << 20;  // bytes of them
};

}  // namespace accdp
