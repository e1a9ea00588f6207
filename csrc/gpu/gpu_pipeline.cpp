#include "gpu/gpu_pipeline.hpp"

#include <utility>

#include "base/keep.hpp"
#include "base/rounding.hpp"
#include "device/cuda_reduce.hpp"
#include "node/copies.hpp"

namespace accdp {
namespace {

constexpr std::size_t kLeastDeviceFrame = 4 << 10;

}  // namespace

void SegmentRooms::reserve(std::size_t segment_bytes, std::size_t count, bool on_device, cudaStream_t stream) {
  segment_bytes = device_aligned(segment_bytes);
  while (settled_.size() < count) settled_.push_back(make_event());
  if (data_ && on_device == on_device_ && segment_bytes <= segment_bytes_ && count == count_) return;
  synchronize(stream);
  data_ = nullptr;
  pinned_ = {};
  device_ = {};
  if (on_device)
    device_ = DeviceBuffer(segment_bytes * count);
  else
    pinned_ = PinnedBuffer(segment_bytes * count);
  data_ = on_device ? device_.data() : pinned_.data();
  on_device_ = on_device;
  segment_bytes_ = segment_bytes;
  count_ = count;
}

Bytes SegmentRooms::scratch(std::size_t bytes, cudaStream_t stream) {
  if (scratch_used_ == scratch_.size()) scratch_.emplace_back();
  DeviceBuffer& buffer = scratch_[scratch_used_++];
  grow(buffer, bytes, stream);
  return {buffer.data(), bytes};
}

void SegmentRooms::abandon() {
  keep_for_ever(std::move(pinned_));
  keep_for_ever(std::move(device_));
  keep_for_ever(std::exchange(scratch_, {}));
  scratch_used_ = 0;
  data_ = nullptr;
}

GpuSegments::GpuSegments(Context& c, Pool& pool, GpuHierarchy& hierarchy, std::size_t room_bytes)
    : c_(c), pool_(pool), groups_(pool.groups()), hierarchy_(hierarchy), rooms_(hierarchy.rooms) {
  // One more than is on the wire: the next is on its way from the device.
  rooms_.reserve(room_bytes, kAhead + 1, hierarchy.by_mpi_on_device, pool.stream());
}

GpuPipeline::GpuPipeline(Context& c, Pool& pool, GpuHierarchy& hierarchy, FrameGrid grid)
    : GpuSegments(c, pool, hierarchy, grid.longest_segment()), grid_(std::move(grid)) {}

void DeviceWorkplace::reduce(void* dst, std::span<const void* const> srcs, std::size_t count, const Reduction& how) {
  reduce_async(dst, nullptr, srcs, count, how, hierarchy_.wire_stream.get());
  synchronize(hierarchy_.wire_stream.get());  // MPI sends it next
}

void GpuPipeline::sum_in_group(std::size_t segment, const Reduction& how) {
  const bool by_gpus = pool_.joins_gpus();
  if (by_gpus) {
    std::vector<LaneCut> cuts;
    for (int lane = 0; lane < grid_.lanes(); ++lane) cuts.push_back({offset(segment, lane), cut(segment, lane).bytes});
    sum_on_each_gpu(c_, pool_, cuts, how);
  }
  for (int lane : groups_.lanes_of(me())) {
    const Bytes to = room(segment, lane);
    const std::vector<const void*> sources = contributions(pool_, lane, offset(segment, lane), by_gpus);
    const void* sum = sources.front();
    if (sources.size() > 1) {
      // In its own slot nobody else reads there.
      std::byte* const place = hierarchy_.by_mpi_on_device ? to.data() : pool_.own_slot() + offset(segment, lane);
      reduce_async(place, nullptr, sources, to.size() / element_bytes(how.type), how.partial(), pool_.stream());
      sum = place;
    }
    copy_async(to.data(), sum, to.size(), pool_.stream());
  }
}

void GpuPipeline::sum_of_groups(std::size_t segment, const Reduction& how) {
  const Bytes mine = own_room(segment);
  if (mine.empty()) return;
  std::vector<const void*> sources;
  for (int group = 0; group < groups_.count(); ++group)
    sources.push_back(group == groups_.mine() ? mine.data() : found(segment, group).data());
  reduce(mine.data(), sources, mine.size() / element_bytes(how.type), how);
}

void GpuPipeline::start_reduction(std::size_t segment, WireReduction* wire, const Reduction& how) {
  settle(segment);
  if (is_apart()) {
    hand_to_owners(segment, true);
    sum_of_groups(segment, c_.topology().nodes() > 1 ? how.partial() : how);
  }
  if (wire) wire->start(segment, room(segment));
}

void GpuPipeline::hand_to_owners(std::size_t segment, bool gives) {
  std::byte* const slot = c_.open(room(segment).size());
  for (int lane : groups_.lanes_of(me())) {
    const Bytes part = room(segment, lane);
    if (gives && lane != own_lane()) c_.write(slot + offset(segment, lane), part, groups_.owner(lane));
  }
  c_.publish();
  c_.await_all();
}

ConstBytes GpuPipeline::found(std::size_t segment, int group) const {
  const int lane = own_lane();
  return {c_.slot(groups_.agent(group, lane)) + offset(segment, lane), cut(segment, lane).bytes};
}

void GpuPipeline::hand_to_agents(std::size_t segment, bool wanted) {
  const Bytes mine = own_room(segment);
  std::byte* const slot = c_.open(room(segment).size());
  c_.write(slot + offset(segment, own_lane()), mine);
  c_.publish();
  c_.await_all();
  for (int lane : groups_.lanes_of(me())) {
    const Bytes part = room(segment, lane);
    if (wanted && lane != own_lane())
      copy_lines(part.data(), c_.slot(groups_.owner(lane)) + offset(segment, lane), part.size());
  }
}

void GpuPipeline::show(std::size_t segment, bool gives) {
  std::byte* const slot = pool_.open(c_);
  for (int lane : groups_.lanes_of(me())) {
    const Bytes part = room(segment, lane);
    if (gives) copy_async(slot + offset(segment, lane), part.data(), part.size(), pool_.stream());
  }
  mark(segment);
  pool_.publish(c_);
  pool_.await_all(c_);
}

void GpuPipeline::take_lanes(std::size_t segment, Bytes out, bool all_want) {
  std::vector<Shown> parts;
  for (int lane = 0; lane < grid_.lanes(); ++lane) {
    const std::size_t at = offset(segment, lane);
    const FrameGrid::Cut part = cut(segment, lane);
    parts.push_back({groups_.agent(groups_.mine(), lane), at, part.bytes, lane, at,
                     out.empty() ? nullptr : out.data() + part.begin});
  }
  take_shown(c_, pool_, parts, all_want && pool_.joins_gpus());
}

std::size_t gpu_frame_bytes(const GpuHierarchy& hierarchy, std::size_t shares) {
  const std::size_t each = round_down(hierarchy.segment_bytes / shares, kDeviceAlign);
  return each < kLeastDeviceFrame ? 0 : each;
}

bool goes_over_gpus(const Context& c, const GpuHierarchy& hierarchy, std::size_t bytes) {
  const Shape& shape = c.shape();
  return bytes >= hierarchy.segment_bytes / 4 && gpu_frame_bytes(hierarchy, shape.ranks) > 0;
}

}  // namespace accdp
