#include "gpu/staging.hpp"

#include <algorithm>

#include "base/rounding.hpp"

namespace accdp {
namespace {

template <class Block>
Block chunk_of(Block block, std::size_t i, std::size_t each) {
  return block.empty() ? block : block.subspan(i * each, std::min(each, block.size() - i * each));
}

/// A chunk at a time, through memory that is not pinned.
void one_by_one(ConstBytes in, Bytes out, std::size_t each, HostRoom& room, cudaStream_t stream,
                const Staging::Step& algorithm) {
  const std::size_t total = std::max(in.size(), out.size());
  for (std::size_t i = 0; i * each < total; ++i) {
    const ConstBytes from = chunk_of(in, i, each);
    const Bytes to = chunk_of(out, i, each);
    const Bytes here = room.span().first(std::max(from.size(), to.size()));
    const Transfer down{here.data(), from.data(), from.size()}, up{to.data(), here.data(), to.size()};
    room.fetch({&down, 1}, stream);
    algorithm(in.empty() ? ConstBytes() : ConstBytes(here), out.empty() ? Bytes() : here);
    room.deliver({&up, 1}, stream);
  }
}

}  // namespace

void Staging::in_chunks(ConstBytes in, Bytes out, std::size_t chunk_bytes, cudaStream_t stream, const Step& algorithm) {
  const std::size_t total = std::max(in.size(), out.size()), each = device_aligned(std::min(chunk_bytes, total));
  if (total == 0) return algorithm({}, {});
  const std::size_t chunks = ceil_div(total, each);
  room_ = {};  // what a call that failed has left
  room_ = HostRoom(std::min<std::size_t>(chunks, 2) * each);
  if (!room_.is_pinned()) {
    one_by_one(in, out, each, room_, stream, algorithm);
    room_ = {};
    return;
  }
  PinnedLease& lease = room_.lease();
  auto half = [&](std::size_t i) { return room_.span().subspan(i % 2 * each, std::min(each, total - i * each)); };
  // A half's next chunk follows, on the stream, the way back of the chunk that was in it: its event tells of both.
  auto fetch = [&](std::size_t i) {
    if (i >= chunks) return;
    const PinnedLease::Use use(lease, stream, i % 2);
    const ConstBytes from = chunk_of(in, i, each);
    copy_async(half(i).data(), from.data(), from.size(), stream);
  };
  fetch(0);
  for (std::size_t i = 0; i < chunks; ++i) {
    fetch(i + 1);
    lease.await(i % 2);
    algorithm(in.empty() ? ConstBytes() : ConstBytes(half(i)), out.empty() ? Bytes() : half(i));
    const PinnedLease::Use use(lease, stream, i % 2);
    const Bytes to = chunk_of(out, i, each);
    copy_async(to.data(), half(i).data(), to.size(), stream);
  }
  room_ = {};
}

void Staging::fetch(const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs, cudaStream_t stream) {
  std::size_t bytes = 0;
  for (const ConstBytes& block : ins) bytes += device_aligned(block.size());
  for (const Bytes& block : outs) bytes += device_aligned(block.size());
  room_ = {};  // what a call that failed has left
  room_ = HostRoom(bytes);
  ins_.clear();
  outs_.clear();
  std::vector<Transfer> transfers;
  std::byte* at = room_.data();
  for (const ConstBytes& block : ins) {
    transfers.push_back({at, block.data(), block.size()});
    ins_.emplace_back(at, block.size());
    at += device_aligned(block.size());
  }
  for (const Bytes& block : outs) {
    outs_.emplace_back(at, block.size());
    at += device_aligned(block.size());
  }
  room_.fetch(transfers, stream);
}

void Staging::deliver(const std::vector<Bytes>& outs, cudaStream_t stream) {
  std::vector<Transfer> transfers;
  for (std::size_t i = 0; i < outs.size(); ++i) transfers.push_back({outs[i].data(), outs_[i].data(), outs[i].size()});
  room_.deliver(transfers, stream);
  room_ = {};
}

}  // namespace accdp
