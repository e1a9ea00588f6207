#include "gpu/codec_workshop.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/rounding.hpp"
#include "codec/crc32c.hpp"
#include "codec/cuda_sums.hpp"
#include "device/cuda_reduce.hpp"

namespace accdp {
namespace {

constexpr std::size_t kBatchBytes = 4 << 20;  // decoded at once: what keeps a GPU busy

std::size_t bytes_of(const DeviceBuffer& buffer) { return buffer.bytes(); }
std::size_t bytes_of(const PinnedBuffer& buffer) { return buffer.span().size(); }
std::uint32_t* words(const auto& buffer) { return reinterpret_cast<std::uint32_t*>(buffer.data()); }

}  // namespace

std::size_t CodecWorkshop::Place::bytes() const {
  std::size_t all = 0;
  for (const Span& span : spans) all += span.bytes;
  return all;
}

void CodecWorkshop::Batch::clear() {
  chunks.clear();
  places.clear();
  parcels.clear();
  used = plain_used = 0;
}

CodecWorkshop::CodecWorkshop()
    : kernels_(make_stream()),
      copies_(make_stream()),
      order_(make_event()),
      device_damaged_(sizeof(std::uint32_t)),
      host_damaged_(sizeof(std::uint32_t)) {
  for (Batch& batch : batches_) batch.ready = make_event();
}

CodecWorkshop::~CodecWorkshop() {
  drain(kernels_.get());
  drain(copies_.get());
}

bool CodecWorkshop::is_idle() const noexcept { return is_done(kernels_.get()) && is_done(copies_.get()); }

void CodecWorkshop::begin_after(cudaStream_t stream) {
  for (const auto& beginning : beginnings_) beginning->is_taken = beginning->is_under_way = false;
  for (Batch& batch : batches_) {
    batch.is_under_way = false;
    batch.clear();
  }
  scratch_used_ = 0;
  follow(stream);
  *words(host_damaged_) = 0;
  copy_async(damaged(), host_damaged_.data(), sizeof(std::uint32_t), kernels_.get());
}

void CodecWorkshop::follow(cudaStream_t stream) {
  record(order_, stream);
  wait_for(kernels_.get(), order_);
}

void CodecWorkshop::end_before(cudaStream_t stream) {
  record(order_, kernels_.get());
  wait_for(stream, order_);
}

template <class Buffer>
void CodecWorkshop::make_room(Buffer& buffer, std::size_t bytes) {
  if (bytes_of(buffer) >= bytes) return;
  synchronize(kernels_.get());  // nothing uses the old memory any more
  synchronize(copies_.get());
  buffer = {};
  buffer = Buffer(bytes);
}

void CodecWorkshop::make_codec(std::size_t chunks, std::size_t chunk_bytes) {
  if (codec_ && codec_->takes(chunks, chunk_bytes)) return;
  synchronize(kernels_.get());
  codec_.reset();
  codec_ = std::make_unique<DeviceCodec>(chunks, chunk_bytes);
}

// ---- encoding --------------------------------------------------------------------------------------------------

std::size_t CodecWorkshop::free_beginning() {
  for (std::size_t i = 0; i < beginnings_.size(); ++i)
    if (!beginnings_[i]->is_taken) return i;
  auto made = std::make_unique<Beginning>();
  made->device_sizes = DeviceBuffer(kMostDeviceChunks * sizeof(std::uint32_t));
  made->host_sizes = PinnedBuffer(kMostDeviceChunks * sizeof(std::uint32_t));
  made->ready = make_event();
  beginnings_.push_back(std::move(made));
  return beginnings_.size() - 1;
}

std::size_t CodecWorkshop::begin_encode(const std::vector<Job>& jobs) {
  const std::size_t number = free_beginning();
  Beginning& b = *beginnings_[number];
  b.is_taken = b.is_under_way = true;
  b.jobs = jobs;
  b.places.clear();
  b.encoded.clear();
  if (jobs.empty()) return number;
  decode_batch();  // it may be what is to be encoded
  std::size_t room = 0, plain = 0, longest = 0;
  for (const Job& job : jobs) {
    const std::size_t bytes = job.place.bytes();
    b.places.push_back(room);
    room += encoded_room(job.codec->id, job.how.type, bytes);
    if (!job.place.is_direct()) plain += device_aligned(bytes);
    longest = std::max(longest, bytes);
  }
  make_room(b.on_device, room);
  make_room(b.on_host, room);
  make_room(b.plain, plain);
  make_codec(jobs.size(), longest);
  // A call of kernels for every run of chunks that are encoded alike; of nvCOMP's that are as long, too, because it may
  // use of each as much room as the longest one needs.
  std::vector<DeviceChunk> chunks;
  std::byte* at = b.plain.data();
  for (std::size_t i = 0, first = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    const std::size_t bytes = job.place.bytes();
    const std::byte* in = job.place.spans[0].data;
    if (!job.place.is_direct()) {
      in = at;
      std::byte* to = at;
      for (const Span& span : job.place.spans) {
        if (span.reference)
          delta_encode_async(job.place.type, span.data, span.reference, to, span.bytes, kernels_.get());
        else
          copy_async(to, span.data, span.bytes, kernels_.get());
        to += span.bytes;
      }
      at += device_aligned(bytes);
    }
    chunks.push_back({in, b.on_device.data() + b.places[i], static_cast<std::uint32_t>(bytes),
                      static_cast<std::uint32_t>(encoded_room(job.codec->id, job.how.type, bytes))});
    const bool goes_on = i + 1 < jobs.size() && jobs[i + 1].codec == job.codec &&
                         jobs[i + 1].how.type == job.how.type && jobs[i + 1].how.bound == job.how.bound &&
                         (!is_of_nvcomp(job.codec->id) || jobs[i + 1].place.bytes() == bytes);
    if (goes_on) continue;
    codec_->encode_async(job.codec->id, job.how, chunks, words(b.device_sizes) + first, kernels_.get());
    chunks.clear();
    first = i + 1;
  }
  copy_async(b.host_sizes.data(), b.device_sizes.data(), jobs.size() * sizeof(std::uint32_t), kernels_.get());
  record(b.ready, kernels_.get());
  return number;
}

const std::vector<ConstBytes>& CodecWorkshop::encoded(std::size_t beginning) {
  Beginning& b = *beginnings_[beginning];
  if (!std::exchange(b.is_under_way, false) || b.places.empty()) return b.encoded;
  synchronize(b.ready);
  for (std::size_t i = 0; i < b.places.size(); ++i) {
    const std::size_t bytes = words(b.host_sizes)[i];
    copy_async(b.on_host.data() + b.places[i], b.on_device.data() + b.places[i], bytes, copies_.get());
    b.encoded.emplace_back(b.on_host.data() + b.places[i], bytes);
  }
  synchronize(copies_.get());
  return b.encoded;
}

void CodecWorkshop::round(std::size_t beginning, const std::vector<Rounding>& roundings, double factor, bool replaces) {
  const Beginning& b = *beginnings_[beginning];
  std::size_t room = 0;
  for (const Rounding& rounding : roundings) room += device_aligned(b.jobs[rounding.chunk].place.bytes());
  make_room(rounded_, room);
  std::vector<DeviceChunk> chunks;
  std::byte* at = rounded_.data();
  for (std::size_t i = 0; i < roundings.size(); ++i) {
    const std::size_t chunk = roundings[i].chunk;
    const Job& job = b.jobs[chunk];
    const std::size_t bytes = job.place.bytes();
    const ConstBytes stored = b.encoded[chunk];
    chunks.push_back({b.on_device.data() + b.places[chunk], at, static_cast<std::uint32_t>(stored.size()),
                      static_cast<std::uint32_t>(bytes), check_head(job.codec->id, job.how.type, stored, bytes)});
    at += device_aligned(bytes);
    const Job* next = i + 1 < roundings.size() ? &b.jobs[roundings[i + 1].chunk] : nullptr;
    if (next && next->codec == job.codec && next->how.type == job.how.type) continue;
    codec_->decode_async(job.codec->id, job.how.type, chunks, damaged(), kernels_.get());
    chunks.clear();
  }
  at = rounded_.data();
  for (const Rounding& rounding : roundings) {
    const Job& job = b.jobs[rounding.chunk];
    const std::size_t bytes = job.place.bytes();
    if (rounding.residual)
      residual_async(job.how.type, rounding.tensor, at, factor, rounding.residual, bytes, kernels_.get());
    if (replaces) copy_async(rounding.tensor, at, bytes, kernels_.get());
    at += device_aligned(bytes);
  }
}

// ---- decoding --------------------------------------------------------------------------------------------------

/// Room for so many bytes in the batch, where they are taken up; begins to decode what is before them if they do not
/// fit any more.
std::size_t CodecWorkshop::take_room(std::size_t bytes) {
  if (batch().used > 0 && batch().used + bytes > kBatchBytes) decode_batch();
  Batch& b = batch();
  if (b.used == 0) {
    if (std::exchange(b.is_under_way, false)) synchronize(b.ready);
    make_room(b.on_host, std::max(kBatchBytes, bytes));
    make_room(b.on_device, std::max(kBatchBytes, bytes));
  }
  return std::exchange(b.used, b.used + device_aligned(bytes));
}

void CodecWorkshop::decode(const CodecRow* codec, Datatype type, ConstBytes stored, const Place& to) {
  if (stored.empty()) return;
  const std::size_t bytes = to.bytes();
  const double step = codec ? check_head(codec->id, type, stored, bytes) : 0;
  const bool is_other = codec && !batch().chunks.empty() && (codec != batch_codec_ || type != batch_type_);
  if (is_other || batch().chunks.size() == kMostDeviceChunks) decode_batch();
  const std::size_t at = take_room(stored.size());
  Batch& b = batch();
  std::byte *on_host = b.on_host.data() + at, *on_device = b.on_device.data() + at;
  std::memcpy(on_host, stored.data(), stored.size());
  if (!codec && to.is_direct()) return copy_async(to.spans[0].data, on_host, stored.size(), kernels_.get());
  copy_async(on_device, on_host, stored.size(), kernels_.get());
  if (!codec) return b.parcels.push_back({to, on_device, 0});
  batch_codec_ = codec;
  batch_type_ = type;
  b.chunks.push_back({on_device, to.is_direct() ? to.spans[0].data : nullptr, static_cast<std::uint32_t>(stored.size()),
                      static_cast<std::uint32_t>(bytes), step});
  b.places.emplace_back();
  if (to.is_direct()) return;
  b.places.back() = b.plain_used;
  b.parcels.push_back({to, nullptr, b.plain_used});
  b.plain_used += device_aligned(bytes);
}

void CodecWorkshop::place(const std::byte* plain, const Place& to) {
  for (const Span& span : to.spans) {
    if (span.reference)
      delta_decode_async(to.type, plain, span.reference, span.data, span.bytes, kernels_.get());
    else
      copy_async(span.data, plain, span.bytes, kernels_.get());
    plain += span.bytes;
  }
}

void CodecWorkshop::decode_batch() {
  Batch& b = batch();
  if (b.used == 0) return;
  make_room(b.plain, b.plain_used);
  std::size_t longest = 0;
  for (std::size_t i = 0; i < b.chunks.size(); ++i) {
    longest = std::max<std::size_t>(longest, b.chunks[i].out_bytes);
    if (b.places[i]) b.chunks[i].out = b.plain.data() + *b.places[i];
  }
  if (!b.chunks.empty()) {
    make_codec(b.chunks.size(), longest);
    codec_->decode_async(batch_codec_->id, batch_type_, b.chunks, damaged(), kernels_.get());
  }
  for (const Parcel& parcel : b.parcels) place(parcel.from ? parcel.from : b.plain.data() + parcel.place, parcel.to);
  record(b.ready, kernels_.get());
  b.is_under_way = true;
  b.clear();
  ++decoded_;
}

void CodecWorkshop::finish() {
  decode_batch();
  copy_async(host_damaged_.data(), damaged(), sizeof(std::uint32_t), kernels_.get());
  synchronize(kernels_.get());
  if (*words(host_damaged_)) throw CodecError("a chunk that was decoded on the device is damaged");
}

// ---- reducing --------------------------------------------------------------------------------------------------

std::byte* CodecWorkshop::scratch(std::size_t bytes) {
  if (scratch_used_ == scratch_.size()) scratch_.emplace_back();
  DeviceBuffer& buffer = scratch_[scratch_used_++];
  make_room(buffer, bytes);
  return buffer.data();
}

void CodecWorkshop::reduce(std::byte* to, const std::vector<const void*>& sources, std::size_t count,
                           const Reduction& how) {
  decode_batch();
  reduce_async(to, nullptr, sources, count, how, kernels_.get());
}

std::vector<double> CodecWorkshop::deviations(const std::vector<Tensor>& tensors) {
  std::size_t parts = 0;
  for (const Tensor& tensor : tensors) parts = std::max(parts, sum_parts(tensor.bytes));
  const std::size_t bytes = tensors.size() * sizeof(Spread);
  make_room(device_results_, bytes + parts * sizeof(Spread));
  make_room(host_results_, bytes);
  auto* const on_device = reinterpret_cast<Spread*>(device_results_.data());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    spread_async(tensors[i].type, tensors[i].data, tensors[i].bytes, on_device + tensors.size(), on_device + i,
                 kernels_.get());
  copy_async(host_results_.data(), on_device, bytes, kernels_.get());
  synchronize(kernels_.get());
  std::vector<double> found;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    found.push_back(deviation_of(reinterpret_cast<const Spread*>(host_results_.data())[i]));
  return found;
}

std::uint32_t CodecWorkshop::crc32c(ConstBytes data, std::uint32_t seed) {
  constexpr std::size_t kWord = sizeof(std::uint32_t);
  make_room(device_results_, kWord + sum_parts(data.size()) * kWord);
  make_room(host_results_, kWord);
  std::uint32_t* const on_device = words(device_results_);
  crc32c_async(data.data(), data.size(), on_device + 1, on_device, kernels_.get());
  copy_async(host_results_.data(), on_device, kWord, kernels_.get());
  synchronize(kernels_.get());
  return crc32c_joined(seed, *words(host_results_), data.size());
}

void CodecWorkshop::fetch(std::span<const Transfer> transfers, HostRoom& room) {
  decode_batch();
  room.fetch(transfers, kernels_.get(), fetch_async);
}

void SpareWorkshop::load_kernels(int device) {
  std::call_once(loaded_, [device] {
    expect_code(device);
    load_codecs();
    load_reductions();
  });
}

std::unique_ptr<CodecWorkshop> SpareWorkshop::take() {
  {
    std::lock_guard lock(mutex_);
    if (spare_) return std::move(spare_);
  }
  return std::make_unique<CodecWorkshop>();
}

void SpareWorkshop::put(std::unique_ptr<CodecWorkshop> workshop) {
  std::lock_guard lock(mutex_);
  spare_ = std::move(workshop);
}

}  // namespace accdp
