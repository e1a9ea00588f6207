#include "coll/ordered_costs.hpp"

#include <algorithm>

#include "base/rounding.hpp"
#include "coll/block_costs.hpp"

namespace accdp {
namespace {

/// What follows on a meeting, of an operation that would begin with one by itself: there that is a mere step.
Estimate after_meeting(Estimate e, const Shape& shape, const Machine& m) {
  e.seconds -= meeting(shape, m).seconds - m.step_s;
  return e;
}

/// Of an alltoall of slices: their sizes then go in messages of their own.
Estimate exchanged(std::size_t slice, const Shape& shape, const Machine& m) {
  AlltoallCut cut(shape);
  const bool along = cut.by_leaders && slice <= cut.limit;
  cut.with_signatures = false;
  return after_meeting(alltoall_estimate(slice, along, cut, shape, m), shape, m);
}

Estimate exchanged_and_reduced(std::size_t slice, const Shape& shape, const Machine& m) {
  Estimate e = exchanged(slice, shape, m);
  e.seconds += static_cast<double>(slice) * shape.ranks / m.reduce_bytes_per_s;
  return e;
}

/// Of an alltoall in which each rank has a slice for rank 0 and nothing for the others.
Estimate gathered(std::size_t slice, const Shape& shape, const Machine& m) {
  Estimate e = exchanged(slice, shape, m);
  e.wire_bytes = exchanged(0, shape, m).wire_bytes;  // of node 0, which gets them all
  return e;
}

Estimate shared(std::size_t slice, const Shape& shape, const Machine& m) {
  const bool by_likes = gathers_by_likes(slice * shape.ranks, shape, m);
  return after_meeting(by_likes ? gather_by_likes(slice, shape, m) : block_pipeline(slice, shape, m, true, 1), shape,
                       m);
}

Estimate segment_of_reduce(std::size_t bytes, const Shape& shape, const Machine& m, bool receiver_only) {
  const std::size_t slice = ordered_slice_bytes(bytes, shape.ranks), here = shape.ranks_on_node_0();
  const Estimate reduced = exchanged_and_reduced(slice, shape, m);
  const Estimate handed_on = receiver_only ? gathered(slice, shape, m) : shared(slice, shape, m);
  Estimate e = reduced;
  e += handed_on;
  // Of slices that are not all as long: what node 0 does not own itself, and what it does.
  const std::size_t owned = std::min(bytes, here * slice), letters = exchanged(0, shape, m).wire_bytes;
  e.wire_bytes = letters + here * (bytes - owned) + (receiver_only ? letters : owned * (shape.nodes - 1));
  e.chunk_bytes = reduced.chunk_bytes;
  return e;
}

/// The meeting, then so many segments, each as long as the first but for the last.
template <class Segment>
Estimate in_segments(std::size_t bytes, std::size_t each, const Shape& shape, const Machine& m, Segment segment) {
  Estimate total = meeting(shape, m);
  const auto add = [&](std::size_t count, std::size_t part) {
    if (count == 0) return;
    const Estimate one = segment(part);
    total += {static_cast<double>(count) * one.seconds, count * one.steps, count * one.wire_bytes, one.chunk_bytes};
  };
  add(bytes / each, each);
  add(bytes % each ? 1 : 0, bytes % each);
  return total;
}

}  // namespace

std::size_t ordered_slice_bytes(std::size_t bytes, int ranks) {
  return (bytes + ranks * kLine - 1) / (ranks * kLine) * kLine;
}

std::size_t ordered_piece_bytes(int ranks) { return std::max(round_down(kOrderedSegment / ranks, kLine), kLine); }

std::size_t ordered_message_bytes(std::size_t slice, const Shape& shape) {
  return exchanged(slice, shape, Machine()).chunk_bytes;
}

Estimate ordered_reduce_estimate(std::size_t bytes, const Shape& shape, const Machine& m, bool receiver_only) {
  return in_segments(bytes, kOrderedSegment, shape, m,
                     [&](std::size_t part) { return segment_of_reduce(part, shape, m, receiver_only); });
}

Estimate ordered_reduce_scatter_estimate(std::size_t block, const Shape& shape, const Machine& m) {
  return in_segments(block, ordered_piece_bytes(shape.ranks), shape, m,
                     [&](std::size_t part) { return exchanged_and_reduced(part, shape, m); });
}

}  // namespace accdp
