#include "gpu/staging.hpp"

#include <algorithm>

namespace accdp {
namespace {

constexpr std::size_t kAlign = 256;
std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

/// Waits until nothing uses the memory any more, and makes it as large as is needed.
void Staging::reserve(std::size_t bytes, cudaStream_t stream) {
  synchronize(stream);
  if (memory_.span().size() >= bytes) return;
  memory_ = {};
  memory_ = PinnedBuffer(bytes);
}

void Staging::in_chunks(ConstBytes in, Bytes out, std::size_t chunk_bytes, cudaStream_t stream, const Step& algorithm) {
  const std::size_t total = std::max(in.size(), out.size()), each = aligned(std::min(chunk_bytes, total));
  if (total == 0) return algorithm({}, {});
  const std::size_t chunks = (total + each - 1) / each;
  reserve(std::min<std::size_t>(chunks, 2) * each, stream);
  for (Event& event : ready_)
    if (!event) event = make_event();
  auto part = [&](auto block, std::size_t i) {
    return block.empty() ? block : block.subspan(i * each, std::min(each, total - i * each));
  };
  auto half = [&](std::size_t i) { return memory_.span().subspan(i % 2 * each, std::min(each, total - i * each)); };
  // A half's next chunk follows, on the stream, the way back of the chunk that was in it: the event tells of both.
  auto fetch = [&](std::size_t i) {
    if (i >= chunks) return;
    const ConstBytes from = part(in, i);
    copy_async(half(i).data(), from.data(), from.size(), stream);
    record(ready_[i % 2], stream);
  };
  fetch(0);
  for (std::size_t i = 0; i < chunks; ++i) {
    fetch(i + 1);
    synchronize(ready_[i % 2]);
    algorithm(in.empty() ? ConstBytes() : ConstBytes(half(i)), out.empty() ? Bytes() : half(i));
    const Bytes to = part(out, i);
    copy_async(to.data(), half(i).data(), to.size(), stream);
  }
}

void Staging::fetch(const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs, cudaStream_t stream) {
  std::size_t bytes = 0;
  for (const ConstBytes& block : ins) bytes += aligned(block.size());
  for (const Bytes& block : outs) bytes += aligned(block.size());
  reserve(bytes, stream);
  ins_.clear();
  outs_.clear();
  std::byte* at = memory_.data();
  for (const ConstBytes& block : ins) {
    copy_async(at, block.data(), block.size(), stream);
    ins_.emplace_back(at, block.size());
    at += aligned(block.size());
  }
  for (const Bytes& block : outs) {
    outs_.emplace_back(at, block.size());
    at += aligned(block.size());
  }
  synchronize(stream);
}

void Staging::deliver(const std::vector<Bytes>& outs, cudaStream_t stream) {
  for (std::size_t i = 0; i < outs.size(); ++i) copy_async(outs[i].data(), outs_[i].data(), outs[i].size(), stream);
}

}  // namespace accdp
