#include "gpu/codec_copies.hpp"

#include <algorithm>
#include <utility>

#include "base/keep.hpp"
#include "device/cuda_reduce.hpp"
#include "gpu/device_scope.hpp"
#include "gpu/device_speeds.hpp"
#include "gpu/node_lots.hpp"

namespace accdp {

static_assert(DeviceTensors::kMostChunks <= kMostDeviceChunks && DeviceTensors::kMostSources <= kMostSources);

CodecCopies::CodecCopies(Group& group, std::shared_ptr<SpareWorkshop> spare, NodePool node_pool, int device,
                         cudaStream_t stream, const std::vector<DeviceBlock>& blocks, const std::vector<Bytes>& copies,
                         HostRoom& room)
    : group_(group),
      spare_(std::move(spare)),
      node_pool_(std::move(node_pool)),
      device_(device),
      stream_(stream),
      blocks_(blocks),
      copies_(copies),
      room_(room) {}

bool CodecCopies::is_idle() const noexcept { return !workshop_ || workshop_->is_idle(); }

CodecCopies::~CodecCopies() {
  if (!workshop_) return;
  if (is_idle())
    spare_->put(std::move(workshop_));
  else
    keep_for_ever(std::move(workshop_));
}

CodecWorkshop& CodecCopies::workshop() {
  if (!workshop_) {
    workshop_ = spare_->take();
    workshop_->begin_after(stream_);
  }
  return *workshop_;
}

std::byte* CodecCopies::on_device(ConstBytes host) const {
  const auto begins_behind = [](const std::byte* at, const Bytes& copy) { return at < copy.data(); };
  const auto next = std::upper_bound(copies_.begin(), copies_.end(), host.data(), begins_behind);
  if (next != copies_.begin()) {
    const std::size_t i = next - copies_.begin() - 1;
    const std::size_t offset = host.data() - copies_[i].data();
    if (offset + host.size() <= copies_[i].size()) return blocks_[i].data.data() + offset;
  }
  for (const Bytes& room : scratch_)
    if (host.data() >= room.data() && host.data() + host.size() <= room.data() + room.size())
      return const_cast<std::byte*>(host.data());
  return nullptr;
}

CodecWorkshop::Place CodecCopies::on_device(const Place& place) const {
  CodecWorkshop::Place found{{}, place.type};
  for (std::size_t i = 0; i < place.spans.size(); ++i) {
    const std::byte* reference = place.references.empty() ? nullptr : on_device(place.references[i]);
    found.spans.push_back({on_device(place.spans[i]), reference, place.spans[i].size()});
  }
  return found;
}

void CodecCopies::is_written(ConstBytes host) {
  fetched_.remove(host);
  written_.add(host);
}

bool CodecCopies::has(const CodecRow& codec, Datatype type) const {
  const DeviceScope scope(group_, device_);
  return encodes_on_device(codec.id, type);
}

CodecCost CodecCopies::speed(const CodecRow& codec, Datatype type) const {
  const DeviceScope scope(group_, device_);
  return device_codec_speed(device_, codec, type);
}

/// What was not written here needs not wait for what was.
void CodecCopies::fetch(const std::vector<ConstBytes>& host) {
  const DeviceScope scope(group_, device_);
  std::vector<Transfer> unchanged, written;
  for (const ConstBytes& span : host) {
    if (span.empty() || !on_device(span)) continue;
    fetched_.gaps(span, [&](ConstBytes part) {
      auto& transfers = written_.has_any(part) ? written : unchanged;
      transfers.push_back({const_cast<std::byte*>(part.data()), on_device(part), part.size()});
    });
    fetched_.add(span);
  }
  if (!unchanged.empty()) room_.fetch(unchanged, stream_, fetch_async);
  if (!written.empty()) workshop().fetch(written, room_);
}

std::size_t CodecCopies::begin_encode(const std::vector<Chunk>& chunks) {
  const DeviceScope scope(group_, device_);
  std::vector<CodecWorkshop::Job> jobs;
  for (const Chunk& chunk : chunks) jobs.push_back({on_device(chunk.place), chunk.codec, chunk.how});
  return workshop().begin_encode(jobs);
}

const std::vector<ConstBytes>& CodecCopies::encoded(std::size_t beginning) {
  const DeviceScope scope(group_, device_);
  return workshop().encoded(beginning);
}

void CodecCopies::decode(const CodecRow* codec, Datatype type, ConstBytes stored, const Place& to) {
  const DeviceScope scope(group_, device_);
  workshop().decode(codec, type, stored, on_device(to));
  for (const Bytes& span : to.spans) is_written(span);
}

std::uint32_t CodecCopies::crc32c(ConstBytes host, std::uint32_t seed) {
  const DeviceScope scope(group_, device_);
  return workshop().crc32c({on_device(host), host.size()}, seed);
}

void CodecCopies::finish() {
  if (!workshop_) return;
  const DeviceScope scope(group_, device_);
  workshop_->finish();
}

Bytes CodecCopies::scratch(std::size_t bytes) {
  const DeviceScope scope(group_, device_);
  return scratch_.emplace_back(workshop().scratch(bytes), bytes);
}

void CodecCopies::reduce(Bytes to, const std::vector<ConstBytes>& sources, const Reduction& how) {
  const DeviceScope scope(group_, device_);
  std::vector<const void*> there;
  for (const ConstBytes& source : sources) there.push_back(on_device(source));
  workshop().reduce(on_device(to), there, to.size() / element_bytes(how.type), how);
  is_written(to);
}

void CodecCopies::round(std::size_t beginning, const std::vector<Rounding>& chunks, double factor, bool replaces) {
  const DeviceScope scope(group_, device_);
  std::vector<CodecWorkshop::Rounding> there;
  for (const Rounding& one : chunks) {
    auto* residual = one.residual.empty() ? nullptr : reinterpret_cast<float*>(on_device(one.residual));
    there.push_back({one.chunk, on_device(one.tensor), residual});
    is_written(one.residual);
    if (replaces) is_written(one.tensor);
  }
  workshop().round(beginning, there, factor, replaces);
}

std::vector<double> CodecCopies::deviations(const std::vector<Tensor>& tensors) {
  const DeviceScope scope(group_, device_);
  std::vector<CodecWorkshop::Tensor> there;
  for (const Tensor& tensor : tensors) there.push_back({on_device(tensor.host), tensor.host.size(), tensor.type});
  return workshop().deviations(there);
}

bool CodecCopies::joins_node(Context& c) {
  const DeviceScope scope(group_, device_);
  pool_ = node_pool_(c);
  return pool_ != nullptr;
}

/// The pool's work from now on begins after all that was done here, and on the caller's stream.
void CodecCopies::lend_to_pool() {
  if (!order_) order_ = make_event();
  record(order_, stream_);
  wait_for(pool_->stream(), order_);
  if (workshop_) workshop_->end_before(pool_->stream());
}

void CodecCopies::take_back_from_pool(ConstBytes written) {
  record(order_, pool_->stream());
  wait_for(stream_, order_);
  pool_->hand_over_reads();
  if (workshop_) workshop_->follow(stream_);
  is_written(written);
}

void CodecCopies::reduce_on_node(Context& c, Bytes data, const std::vector<Lot>& lots, const Reduction& how) {
  const DeviceScope scope(group_, device_);
  lend_to_pool();
  reduce_lots(c, *pool_, {on_device(data), data.size()}, lots, how);
  take_back_from_pool(data);
}

void CodecCopies::share_on_node(Context& c, Bytes data, const std::vector<Lot>& lots) {
  const DeviceScope scope(group_, device_);
  lend_to_pool();
  share_lots(c, *pool_, {on_device(data), data.size()}, lots);
  take_back_from_pool(data);
}

void CodecCopies::deliver() {
  const DeviceScope scope(group_, device_);
  if (workshop_) workshop_->end_before(stream_);
  std::vector<Transfer> transfers;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i].is_written) continue;
    written_.gaps(copies_[i], [&](ConstBytes part) {
      // Of what is read only where it is asked for, the host has no more than that.
      Ranges missing;
      if (blocks_[i].is_read_later) fetched_.gaps(part, [&](ConstBytes gap) { missing.add(gap); });
      missing.gaps(part, [&](ConstBytes here) { transfers.push_back({on_device(here), here.data(), here.size()}); });
    });
  }
  room_.deliver(transfers, stream_);
}

}  // namespace accdp
