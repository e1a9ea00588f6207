// Reductions over nodes: how messages are cut, and sums whose frames are encoded between threads that are ranks.
#include <bit>
#include <cmath>
#include <random>

#include "coll/sum_journey.hpp"
#include "coll/wire_reduction.hpp"
#include "group_checks.hpp"
#include "remembered.hpp"

using Floats = std::vector<float>;

Bytes memory(Floats& values) { return std::as_writable_bytes(std::span(values)); }

/// Every byte is in one frame, every frame in one lane of one segment, in order.
void grids() {
  for (std::size_t bytes : {std::size_t{1}, std::size_t{64}, std::size_t{4097}, std::size_t{1} << 20})
    for (int nodes : {2, 3, 7})
      for (int lanes : {1, 2, 4}) {
        const FrameGrid grid = FrameGrid::even(bytes, 4096, nodes, lanes);
        std::size_t end = 0, number = 0;
        for (std::size_t segment = 0; segment < grid.segments(); ++segment) {
          CHECK(grid.segment(segment).begin == end);
          for (int lane = 0; lane < lanes; ++lane) {
            CHECK(grid.lane(segment, lane).begin == end);
            for (int node = 0; node < nodes; ++node) {
              const std::size_t frame = grid.frame(segment, lane, node);
              if (frame == FrameGrid::kNone) continue;
              CHECK(frame == number++);
              CHECK(grid.cut(frame).begin == end && grid.cut(frame).bytes > 0 && grid.cut(frame).bytes <= 4096);
              end += grid.cut(frame).bytes;
            }
            CHECK(grid.lane(segment, lane).begin + grid.lane(segment, lane).bytes == end);
          }
        }
        CHECK(end == bytes);
      }
}

Floats contribution(int rank, std::size_t count) {
  static Remembered<std::pair<int, std::size_t>, Floats> known;
  return known.get({rank, count}, [&] {
    std::mt19937 random(rank + 1);
    std::normal_distribution<float> normal(0, 0.02F);
    Floats values(count);
    for (float& value : values) value = normal(random);
    return values;
  });
}

/// Sums of several tensors in one memory, within the bound, the same bits on all ranks; the residuals make them whole.
void sums(Group& group) {
  for (const char* codec : {"auto", "fpk", "qpk", "qhuff", "none"})
    for (std::size_t count : {std::size_t{3}, std::size_t{5000}, std::size_t{60'000}}) {
      const bool lossy = codec[0] == 'q';
      StreamOptions options = stream_options(codec, 0, "");
      if (lossy) options.bound = {1e-3, false};
      Floats values = contribution(group.rank(), count), left(lossy ? count : 0);
      const std::size_t first = count / 3 * sizeof(float);
      group.allreduce_stream(
          {{memory(values).first(first), Datatype::kF32}, {memory(values).subspan(first), Datatype::kF32}},
          ReduceOp::kSum, options, left);
      if (lossy) group.allreduce(memory(left), memory(left), Datatype::kF32, ReduceOp::kSum);
      std::vector<double> wanted(count);
      for (int rank = 0; rank < group.size(); ++rank) {
        const Floats one = contribution(rank, count);
        for (std::size_t i = 0; i < count; ++i) wanted[i] += one[i];
      }
      for (std::size_t i = 0; i < count; ++i) {
        CHECK(std::abs(values[i] - wanted[i]) <= (lossy ? 1e-3 : 0) + 1e-7);
        if (lossy) CHECK(std::abs(values[i] + left[i] - wanted[i]) <= 1e-6);
      }
      Floats most = values, least = values;
      group.allreduce(memory(most), memory(most), Datatype::kF32, ReduceOp::kMax);
      group.allreduce(memory(least), memory(least), Datatype::kF32, ReduceOp::kMin);
      CHECK(most == values && least == values);
    }
}

/// Where rank 0 chooses none, or all know it, the message goes as in any allreduce: nothing but its own bytes. Else all
/// take part in encoding, with the codec that it chose, whatever their data.
void agreement(Group& group) {
  for (const std::string codec : {"none", "auto", "fpk"})
    for (int with_zeros : {0, 1, 2}) {  // so many ranks have zeros, which every codec makes small
      const std::size_t count = 1'000'000;
      Floats values(count);
      std::mt19937 random(group.rank());
      if (group.rank() >= with_zeros)
        for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0xbfffffff);
      Floats wanted = values;
      const StreamReport report =
          group.allreduce_stream({{memory(values), Datatype::kF32}}, ReduceOp::kSum, stream_options(codec, 0, ""), {});
      group.allreduce(memory(wanted), memory(wanted), Datatype::kF32, ReduceOp::kSum);
      CHECK(values == wanted);
      // Where it could encode, a slow machine may choose none as well.
      if (codec == "none" || (codec == "auto" && with_zeros == 0))
        CHECK(report.wire_bytes == report.logical_bytes && report.codec == "none");
      if (codec == "fpk" && group.rank() == 0) CHECK(report.wire_bytes != report.logical_bytes);  // frames have heads
      if (group.rank() == 0) CHECK(report.logical_bytes > 0);
    }
}

/// What goes without a codec is told as it went, whichever way that is.
void told_as_it_went(Group& group) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{3000}, std::size_t{1'000'000}}) {
    Floats values(count, 1);
    const StreamReport report =
        group.allreduce_stream({{memory(values), Datatype::kF32}}, ReduceOp::kSum, stream_options("none", 0, ""), {});
    group.allreduce(memory(values), memory(values), Datatype::kF32, ReduceOp::kSum);
    const Group::Run& plain = group.last_run();
    const std::string way = plain.way.algorithm;
    CHECK(report.algorithm == (way != "pipeline" ? way : plain.way.lanes > 1 ? "lanes" : "leaders"));
    // All but the signatures, which are compared before.
    CHECK(report.wire_bytes <= plain.wire_bytes && report.logical_bytes == report.wire_bytes);
    CHECK(plain.wire_bytes - report.wire_bytes <= group.size() * kSignatureBytes);
    if (plain.wire_bytes > 2 * group.size() * kSignatureBytes) CHECK(report.wire_bytes > 0);
  }
}

/// Each node's sums go to all others.
void counts_what_each_node_gets(Group& group) {
  Floats values = contribution(group.rank(), 1'000'000);
  const StreamReport report =
      group.allreduce_stream({{memory(values), Datatype::kF32}}, ReduceOp::kSum, stream_options("fpk", 0, ""), {});
  const std::size_t sent = group.last_run().wire_bytes, most_else = 4096;  // signatures, and what ranks agree on
  CHECK(sent >= report.wire_bytes && sent - report.wire_bytes <= most_else);
  double logical = static_cast<double>(report.logical_bytes);
  const Bytes all = std::as_writable_bytes(std::span(&logical, 1));
  group.allreduce(all, all, Datatype::kF64, ReduceOp::kSum);
  CHECK(logical == 2.0 * (group.topology().nodes() - 1) * memory(values).size());
}

/// Sums of data that changes its kind keep their bits, whatever was chosen for what came before.
void changing_data(Group& group) {
  for (int turn = 0; turn < 4; ++turn) {
    const std::size_t count = 300'000;
    Floats values(count);
    std::mt19937 random(group.rank());
    for (float& value : values)
      value = turn % 2 ? std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0xbfffffff) : 1;
    Floats wanted = values;
    group.allreduce_stream({{memory(values), Datatype::kF32}}, ReduceOp::kSum, stream_options("auto", 0, ""), {});
    group.allreduce(memory(wanted), memory(wanted), Datatype::kF32, ReduceOp::kSum);
    CHECK(values == wanted);
  }
}

/// Where ranks of a node are so many that their frames were too short to be encoded, leaders alone encode; but what is
/// not encoded goes by all, and a codec has to be better than that.
void lanes_of_what_is_not_encoded() {
  Machine machine;
  machine.link = {12.5e9, 5e-6};
  constexpr double kBytes = 64 << 20, kCores = 8;
  const Journey message{kBytes, 16 << 10, 1, machine.link.bytes_per_s, machine.link.latency_s, 0.4e-9, kCores};
  const auto by = [&](int lanes, const Shape& shape) {
    Journey journey = allreduce_journey(message, shape.nodes, lanes);
    journey.own_work_s_per_byte = pipeline_work_seconds(std::size_t(kBytes), shape, machine, lanes) / journey.bytes;
    return journey;
  };
  const Settings now;
  const auto even = [&](int nodes, int k) {
    return Shape::even(nodes, k, std::size_t(now.chunk_bytes), std::size_t(now.flat_bytes));
  };
  const Shape few = even(4, 4), many = even(16, 8);
  CHECK(encoding_lanes(std::size_t(kBytes), few, machine) == 4 && lanes_for(std::size_t(kBytes), few, machine) == 4);
  CHECK(encoding_lanes(std::size_t(kBytes), many, machine) == 1 && lanes_for(std::size_t(kBytes), many, machine) == 8);
  CHECK(plain_seconds(sum_journey(message, few, machine)) == plain_seconds(by(4, few)));
  const Journey journey = sum_journey(message, many, machine);
  const CodecCost codec{8, 100e9, 100e9};
  CHECK(std::abs(plain_seconds(journey) / plain_seconds(by(8, many)) - 1) < 1e-9);
  CHECK(encoded_seconds(journey, codec) == encoded_seconds(by(1, many), codec));
  CHECK(choose_codec(by(1, many), {{codec}}) == 0 && choose_codec(journey, {{codec}}) == -1);
}

int main() {
  grids();
  lanes_of_what_is_not_encoded();
  set_setting("ACCDP_CACHE_DIR", "-");
  for (const char* chunk : {"4k", "64k"}) {
    set_setting("ACCDP_FLAT_BYTES", "1k");
    set_setting("ACCDP_CHUNK_BYTES", chunk);
    run_nodes({0, 1}, sums);
    run_nodes({0, 0, 1, 1}, sums);
    run_nodes({0, 1, 0}, sums);
    run_nodes({0, 1, 2, 3}, sums);
    run_nodes({0, 0, 1, 1, 2, 2}, sums);
  }
  set_setting("ACCDP_CHUNK_BYTES", "256k");
  run_nodes({0, 1, 2, 3}, counts_what_each_node_gets);
  run_nodes({0, 0, 1, 1, 2, 2}, counts_what_each_node_gets);
  run_nodes({0, 1}, changing_data);
  run_nodes({0, 1}, agreement);
  run_nodes({0, 1, 0}, agreement);
  run_nodes({0, 0, 1, 1}, agreement);
  run_nodes({0, 1, 2, 3}, told_as_it_went);
  run_nodes({0, 0, 1, 1}, told_as_it_went);
}
