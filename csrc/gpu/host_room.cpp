#include "gpu/host_room.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/keep.hpp"

namespace accdp {
namespace {

std::size_t total(std::span<const Transfer> transfers) {
  std::size_t bytes = 0;
  for (const Transfer& one : transfers) bytes += one.bytes;
  return bytes;
}

/// Transfers in lots of up to so many bytes, cut where one ends.
std::vector<std::vector<Transfer>> in_lots(std::span<const Transfer> transfers, std::size_t most) {
  std::vector<std::vector<Transfer>> lots(1);
  std::size_t left = most;
  for (const Transfer& one : transfers)
    for (std::size_t at = 0; at < one.bytes;) {
      if (left == 0) lots.emplace_back(), left = most;
      const std::size_t bytes = std::min(one.bytes - at, left);
      lots.back().push_back({one.to + at, one.from + at, bytes});
      at += bytes;
      left -= bytes;
    }
  return lots;
}

/// A pinned window between a device and pageable memory, and what passes through it.
struct Window {
  explicit Window(std::span<const Transfer> transfers)
      : lease(pinned_window(total(transfers))),
        half_bytes(lease.span().size() / 2),
        lots(lease ? in_lots(transfers, half_bytes) : std::vector<std::vector<Transfer>>()) {}
  std::byte* half(std::size_t lot) const { return lease.data() + lot % 2 * half_bytes; }

  PinnedLease lease;
  std::size_t half_bytes;
  std::vector<std::vector<Transfer>> lots;
};

void fetch_through(Window& window, cudaStream_t stream, PutCopies put) {
  const auto begin = [&](std::size_t i) {
    if (i >= window.lots.size()) return;
    std::vector<Transfer> there;
    std::byte* to = window.half(i);
    for (const Transfer& one : window.lots[i]) {
      there.push_back({to, one.from, one.bytes});
      to += one.bytes;
    }
    const PinnedLease::Use use(window.lease, stream, i % 2);
    put(there, stream);
  };
  begin(0);
  for (std::size_t i = 0; i < window.lots.size(); ++i) {
    begin(i + 1);
    window.lease.await(i % 2);
    const std::byte* from = window.half(i);
    for (const Transfer& one : window.lots[i]) {
      std::memcpy(one.to, from, one.bytes);
      from += one.bytes;
    }
  }
}

void deliver_through(Window& window, cudaStream_t stream) {
  for (std::size_t i = 0; i < window.lots.size(); ++i) {
    window.lease.await(i % 2);  // the lot before the last has left
    std::vector<Transfer> from_here;
    std::byte* at = window.half(i);
    for (const Transfer& one : window.lots[i]) {
      std::memcpy(at, one.from, one.bytes);
      from_here.push_back({one.to, at, one.bytes});
      at += one.bytes;
    }
    const PinnedLease::Use use(window.lease, stream, i % 2);
    copy_each(from_here, stream);
  }
}

}  // namespace

void copy_each(std::span<const Transfer> transfers, cudaStream_t stream) {
  for (const Transfer& one : transfers) copy_async(one.to, one.from, one.bytes, stream);
}

HostRoom::HostRoom(std::size_t bytes, std::size_t most_pinned) : bytes_(bytes) {
  if (bytes > 0 && bytes <= most_pinned) pinned_ = hold_pinned(bytes);
  if (bytes > 0 && !pinned_) pageable_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
}

void HostRoom::fetch(std::span<const Transfer> transfers, cudaStream_t stream, PutCopies put) {
  if (total(transfers) == 0) return;
  if (is_pinned()) {
    {
      const PinnedLease::Use use(pinned_, stream);
      put(transfers, stream);
    }
    return pinned_.await();
  }
  if (Window window(transfers); window.lease) return fetch_through(window, stream, put);
  copy_and_wait(transfers, stream);
}

void HostRoom::deliver(std::span<const Transfer> transfers, cudaStream_t stream) {
  if (total(transfers) == 0) return;
  if (is_pinned()) {
    const PinnedLease::Use use(pinned_, stream);
    return copy_each(transfers, stream);
  }
  if (Window window(transfers); window.lease) return deliver_through(window, stream);
  copy_and_wait(transfers, stream);  // the room may go now
}

void HostRoom::leave_to_wire() && {
  if (pinned_) keep_for_ever(std::move(pinned_));
  if (pageable_) keep_for_ever(std::move(pageable_));
}

void HostRoom::copy_and_wait(std::span<const Transfer> transfers, cudaStream_t stream) {
  try {
    // Or the copies would wait, and who waits within CUDA sees neither a signal nor that a rank has died.
    synchronize(stream);
    copy_each(transfers, stream);
    synchronize(stream);
  } catch (...) {
    keep_for_ever(std::move(pageable_));  // the device may come to it yet
    throw;
  }
}

}  // namespace accdp
