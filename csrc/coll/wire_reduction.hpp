#pragma once
#include <cstddef>
#include <vector>

#include "coll/context.hpp"

namespace accdp {

/// How a message is cut for a reduction over nodes. Frames lie one after the other. A segment is one frame for each
/// node in each lane; a lane is one rank per node that speaks with its like. Pure arithmetic.
class FrameGrid {
 public:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Cut {
    std::size_t begin, bytes;
  };

  FrameGrid(std::vector<std::size_t> frame_bytes, int nodes, int lanes);
  /// Frames of at most `frame_bytes`; in a short message smaller ones, so that every node and lane has some of it.
  static FrameGrid even(std::size_t bytes, std::size_t frame_bytes, int nodes, int lanes);

  std::size_t segments() const { return (frames() + per_segment() - 1) / per_segment(); }
  std::size_t frame(std::size_t segment, int lane, int node) const;  ///< its number; kNone where it has no bytes
  Cut cut(std::size_t frame) const { return {begins_[frame], begins_[frame + 1] - begins_[frame]}; }
  Cut segment(std::size_t segment) const { return between(segment * per_segment(), (segment + 1) * per_segment()); }
  Cut lane(std::size_t segment, int lane) const {
    const std::size_t first = segment * per_segment() + std::size_t(lane) * nodes_;
    return between(first, first + nodes_);
  }
  int nodes() const { return nodes_; }
  int lanes() const { return lanes_; }
  std::size_t largest() const { return largest_; }  ///< bytes of a frame
  std::size_t longest_segment() const;              ///< its bytes; walks all of them

 private:
  std::size_t frames() const { return begins_.size() - 1; }
  std::size_t per_segment() const { return std::size_t(nodes_) * lanes_; }
  Cut between(std::size_t first, std::size_t end) const;

  std::vector<std::size_t> begins_;  // and the end of the last
  std::size_t largest_;
  int nodes_, lanes_;
};

/// What frames look like on the wire, where they do not go as they are.
class FrameCodec {
 public:
  virtual ~FrameCodec() = default;
  virtual std::size_t room() const = 0;  ///< bytes of the longest message
  virtual ConstBytes encode_contribution(std::size_t frame, Bytes room) = 0;
  virtual void decode_contribution(std::size_t frame, ConstBytes message, Bytes out) = 0;
  /// Also makes this rank's own sum what the others will decode.
  virtual ConstBytes encode_sum(std::size_t frame, Bytes room) = 0;
  virtual void decode_sum(std::size_t frame, ConstBytes message) = 0;
};

/// Reduces segments over nodes while the caller goes on with other segments: for one lane, on the rank that speaks
/// for its node there. Each frame's own node gets all contributions to it, reduces them in node order, and sends the
/// result to the others. Segments are started and finished in order; `ahead` of them are under way at once.
/// Cost: bytes out of and into a node: 2 * S * (nodes - 1) / nodes.
class WireReduction {
 public:
  /// All of it, or only half: sums stay with their nodes, or each node's own frames go to the others as they are.
  enum class Part { kBoth, kScatter, kGather };
  /// Where frames are received, or decoded, and reduced, for memory that is not the host's.
  class Workplace {
   public:
    virtual ~Workplace() = default;
    virtual Bytes scratch(std::size_t bytes) = 0;  ///< until the end of the collective
    /// As reduce() of device/reduce.hpp; done when it returns.
    virtual void reduce(void* dst, std::span<const void* const> srcs, std::size_t count, const Reduction& how) = 0;
  };
  /// receiver: the node that gets results, -1 for all. codec: null where frames go as they are; messages of one that
  /// encodes are in host memory. workplace: null for host memory.
  WireReduction(Context& c, const FrameGrid& grid, int lane, const Reduction& how, int receiver, std::size_t ahead,
                FrameCodec* codec, Part part = Part::kBoth, Workplace* workplace = nullptr);
  ~WireReduction();

  /// `memory` holds this node's contribution to the segment until the result replaces it.
  void start(std::size_t segment, Bytes memory);
  void finish(std::size_t segment);
  void advance();  ///< does what has become possible

 private:
  struct Flight {
    std::size_t segment = 0;
    Bytes memory;
    std::vector<Wire::Request> contributions, offers, results, answers;  // received, sent, received, sent; by node
    std::vector<Bytes> inbox, outbox;                                    // by node
    std::vector<bool> awaited;                                           // of results, by node
    Bytes answer;
  };
  Flight& flight(std::size_t segment) { return flights_[segment % flights_.size()]; }
  int speaker(int node) const;
  Wire::Form form() const { return codec_ ? Wire::Form::kUpTo : workplace_ ? Wire::Form::kWhole : Wire::Form::kPieces; }
  bool is_wanted(int node) const { return part_ != Part::kScatter && (receiver_ < 0 || receiver_ == node); }
  /// For frames that are not encoded.
  Bytes scratch(std::size_t bytes) { return workplace_ ? workplace_->scratch(bytes) : c_.scratch(bytes); }
  Bytes memory_of(const Flight& f, std::size_t frame) const;
  /// A message from `node`: as long as the frame, or up to a codec's room.
  Wire::Request expect(int node, std::size_t frame, Bytes plain, Bytes& room, Wire::Tag tag);
  void contribute(Flight& f);
  void fold(Flight& f);
  void reduce_frame(Flight& f, std::size_t frame, Bytes place);
  void expect_results(Flight& f);
  int take_results(Flight& f);  ///< decodes those that have come; peer of one that has not, -1: all have
  int pending(std::vector<Wire::Request>& requests);  ///< peer of one that is not complete; -1: all are
  int missing(std::size_t segment);

  Context& c_;
  const FrameGrid& grid_;
  const int lane_, me_, receiver_;
  const Reduction how_;
  FrameCodec* codec_;
  const Part part_;
  Workplace* const workplace_;
  std::vector<Flight> flights_;
  std::vector<Bytes> decoded_;  // by node
  std::size_t started_ = 0, folded_ = 0, expected_ = 0, finished_ = 0;
};

}  // namespace accdp
