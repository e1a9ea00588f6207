#include "gpu/codec_copies.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace accdp {
namespace {

constexpr std::size_t kSizesOfHalf = kMostDeviceChunks, kWords = 2 * kSizesOfHalf + 1, kDamaged = 2 * kSizesOfHalf;
constexpr std::size_t kBatchBytes = 4 << 20;  // decoded at once: what keeps a GPU busy
constexpr std::size_t kPlace = 256;           // encoded chunks begin at multiples of it

}  // namespace

CodecWorkshop::CodecWorkshop()
    : kernels_(make_stream()),
      copies_(make_stream()),
      order_(make_event()),
      far_words_(kWords * sizeof(std::uint32_t)),
      near_words_(kWords * sizeof(std::uint32_t)) {
  for (Half* half : {&encodings_[0], &encodings_[1], &decodings_[0], &decodings_[1]}) half->ready = make_event();
}

CodecWorkshop::~CodecWorkshop() { drain(); }

void CodecWorkshop::drain() noexcept {
  accdp::drain(kernels_.get());
  accdp::drain(copies_.get());
}

std::uint32_t* CodecWorkshop::words(std::size_t half) const {
  return reinterpret_cast<std::uint32_t*>(near_words_.data()) + half * kSizesOfHalf;
}

void CodecWorkshop::begin_after(cudaStream_t stream) {
  for (Half* half : {&encodings_[0], &encodings_[1], &decodings_[0], &decodings_[1]}) half->is_under_way = false;
  batch_.clear();
  record(order_, stream);
  wait_for(kernels_.get(), order_);
  *words(2) = 0;
  copy_async(far_words_.data() + kDamaged * 4, words(2), 4, kernels_.get());
}

void CodecWorkshop::end_before(cudaStream_t stream) {
  record(order_, kernels_.get());
  wait_for(stream, order_);
}

void CodecWorkshop::make_room(Half& half, std::size_t bytes) {
  if (half.far.bytes() >= bytes) return;
  accdp::synchronize(kernels_.get());  // nothing uses the old memory any more
  accdp::synchronize(copies_.get());
  half.far = {};
  half.near = {};
  half.far = DeviceBuffer(bytes);
  half.near = PinnedBuffer(bytes);
}

void CodecWorkshop::make_codec(std::size_t chunks, std::size_t chunk_bytes) {
  if (codec_ && chunks <= codec_chunks_ && chunk_bytes <= codec_chunk_bytes_) return;
  accdp::synchronize(kernels_.get());
  codec_.reset();
  chunks = std::max(chunks, codec_chunks_);
  chunk_bytes = std::max(chunk_bytes, codec_chunk_bytes_);
  codec_ = std::make_unique<DeviceCodec>(chunks, chunk_bytes);
  codec_chunks_ = chunks;
  codec_chunk_bytes_ = chunk_bytes;
}

std::size_t CodecWorkshop::begin_encode(const std::vector<Job>& jobs) {
  const std::size_t beginning = begun_++;
  Half& half = encodings_[beginning % 2];
  half.places.clear();
  half.bytes.clear();
  half.encoded.clear();
  half.is_under_way = true;
  std::size_t room = 0, longest = 0;
  for (const Job& job : jobs) {
    half.places.push_back(room);
    half.bytes.push_back(0);
    room += encoded_room(job.codec->id, job.bytes);
    longest = std::max(longest, job.bytes);
  }
  if (jobs.empty()) return beginning;
  make_room(half, room);
  make_codec(jobs.size(), longest);
  auto* sizes = reinterpret_cast<std::uint32_t*>(far_words_.data()) + beginning % 2 * kSizesOfHalf;
  // A call of kernels for every run of chunks that are encoded alike.
  std::vector<DeviceChunk> chunks;
  for (std::size_t i = 0, first = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    chunks.push_back({job.in, half.far.data() + half.places[i], static_cast<std::uint32_t>(job.bytes),
                      static_cast<std::uint32_t>(encoded_room(job.codec->id, job.bytes))});
    const bool goes_on = i + 1 < jobs.size() && jobs[i + 1].codec == job.codec &&
                         jobs[i + 1].how.type == job.how.type && jobs[i + 1].how.bound == job.how.bound;
    if (goes_on) continue;
    codec_->encode_async(job.codec->id, job.how, chunks, sizes + first, kernels_.get());
    chunks.clear();
    first = i + 1;
  }
  copy_async(words(beginning % 2), sizes, jobs.size() * sizeof(std::uint32_t), kernels_.get());
  record(half.ready, kernels_.get());
  return beginning;
}

const std::vector<ConstBytes>& CodecWorkshop::encoded(std::size_t beginning) {
  Half& half = encodings_[beginning % 2];
  if (!std::exchange(half.is_under_way, false) || half.places.empty()) return half.encoded;
  accdp::synchronize(half.ready);
  const std::uint32_t* sizes = words(beginning % 2);
  for (std::size_t i = 0; i < half.places.size(); ++i) {
    copy_async(half.near.data() + half.places[i], half.far.data() + half.places[i], sizes[i], copies_.get());
    half.encoded.emplace_back(half.near.data() + half.places[i], sizes[i]);
  }
  accdp::synchronize(copies_.get());
  return half.encoded;
}

void CodecWorkshop::decode(const CodecRow& codec, Datatype type, ConstBytes stored, std::byte* out, std::size_t bytes) {
  const double step = check_head(codec.id, type, stored, bytes);
  const bool fits = batch_.size() < kMostDeviceChunks && batch_used_ + stored.size() <= kBatchBytes;
  if (!batch_.empty() && (&codec != batch_codec_ || type != batch_type_ || !fits)) decode_batch();
  Half& half = decodings_[decoded_ % 2];
  if (batch_.empty()) {
    if (std::exchange(half.is_under_way, false)) accdp::synchronize(half.ready);
    make_room(half, std::max(kBatchBytes, stored.size()));
    batch_codec_ = &codec;
    batch_type_ = type;
    batch_used_ = 0;
  }
  std::byte *near = half.near.data() + batch_used_, *far = half.far.data() + batch_used_;
  std::memcpy(near, stored.data(), stored.size());
  copy_async(far, near, stored.size(), kernels_.get());
  batch_.push_back({far, out, static_cast<std::uint32_t>(stored.size()), static_cast<std::uint32_t>(bytes), step});
  batch_used_ += (stored.size() + kPlace - 1) / kPlace * kPlace;
}

void CodecWorkshop::decode_batch() {
  if (batch_.empty()) return;
  Half& half = decodings_[decoded_++ % 2];
  std::size_t longest = 0;
  for (const DeviceChunk& chunk : batch_) longest = std::max<std::size_t>(longest, chunk.out_bytes);
  make_codec(batch_.size(), longest);
  codec_->decode_async(batch_codec_->id, batch_type_, batch_,
                       reinterpret_cast<std::uint32_t*>(far_words_.data()) + kDamaged, kernels_.get());
  record(half.ready, kernels_.get());
  half.is_under_way = true;
  batch_.clear();
}

void CodecWorkshop::finish() {
  decode_batch();
  copy_async(words(2), far_words_.data() + kDamaged * 4, 4, kernels_.get());
  accdp::synchronize(kernels_.get());
  if (*words(2)) throw CodecError("a chunk that was decoded on the device is damaged");
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

FarCopies::FarCopies(std::shared_ptr<SpareWorkshop> spare, int device, cudaStream_t stream,
                     const std::vector<DeviceBlock>& blocks, const std::vector<Bytes>& copies)
    : spare_(std::move(spare)), device_(device), stream_(stream), blocks_(blocks), copies_(copies) {}

FarCopies::~FarCopies() {
  if (!workshop_) return;
  workshop_->drain();  // tensors and pinned copies go next
  spare_->put(std::move(workshop_));
}

CodecWorkshop& FarCopies::workshop() {
  if (!workshop_) {
    workshop_ = spare_->take();
    workshop_->begin_after(stream_);
  }
  return *workshop_;
}

std::byte* FarCopies::far(ConstBytes host) const {
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    const std::byte* begin = copies_[i].data();
    if (host.data() >= begin && host.data() + host.size() <= begin + copies_[i].size())
      return blocks_[i].data.data() + (host.data() - begin);
  }
  return nullptr;
}

void FarCopies::fetch(ConstBytes host) {
  if (!far(host)) return;
  const DeviceGuard guard(device_);
  bool waits = false;
  fetched_.gaps(host, [&](ConstBytes part) {
    copy_async(const_cast<std::byte*>(part.data()), far(part), part.size(), stream_);
    waits = true;
  });
  if (waits) synchronize(stream_);
  fetched_.add(host);
}

std::size_t FarCopies::begin_encode(const std::vector<Chunk>& chunks) {
  const DeviceGuard guard(device_);
  std::vector<CodecWorkshop::Job> jobs;
  for (const Chunk& chunk : chunks) jobs.push_back({far(chunk.host), chunk.host.size(), chunk.codec, chunk.how});
  return workshop().begin_encode(jobs);
}

const std::vector<ConstBytes>& FarCopies::encoded(std::size_t beginning) {
  const DeviceGuard guard(device_);
  return workshop().encoded(beginning);
}

void FarCopies::decode(const CodecRow& codec, Datatype type, ConstBytes stored, Bytes host) {
  const DeviceGuard guard(device_);
  workshop().decode(codec, type, stored, far(host), host.size());
  decoded_.add(host);
}

void FarCopies::finish() {
  if (!workshop_) return;
  const DeviceGuard guard(device_);
  workshop_->finish();
}

void FarCopies::deliver() {
  const DeviceGuard guard(device_);
  if (workshop_) workshop_->end_before(stream_);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i].is_written) continue;
    decoded_.gaps(copies_[i], [&](ConstBytes part) {
      // Of what is read only where it is asked for, the host has no more than that.
      Ranges missing;
      if (blocks_[i].is_read_later) fetched_.gaps(part, [&](ConstBytes gap) { missing.add(gap); });
      missing.gaps(part, [&](ConstBytes here) { copy_async(far(here), here.data(), here.size(), stream_); });
    });
  }
}

}  // namespace accdp
