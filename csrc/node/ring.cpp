#include "node/ring.hpp"

#include <algorithm>
#include <cstring>

#include "node/copies.hpp"
#include "node/pages.hpp"

namespace accdp {

std::size_t Ring::space(std::size_t enough) const {
  const std::uint64_t written = line_->written.load(std::memory_order_relaxed);
  const auto left = [&] {
    const std::size_t free = capacity_ - (written - line_->taken_seen);
    return free > sizeof(MessageHead) ? free - sizeof(MessageHead) : 0;
  };
  if (const std::size_t known = left(); known >= enough) return known;
  line_->taken_seen = line_->taken.load(std::memory_order_acquire);
  return left();
}

void Ring::put(const MessageHead& head, const std::byte* payload, SlotWriter& writer) {
  const std::uint64_t at = line_->written.load(std::memory_order_relaxed), end = at + sizeof head + head.piece;
  if (const std::size_t used = std::min(end, std::uint64_t{capacity_}); used > line_->paged) {
    const std::size_t paged = pages_ahead(line_->paged, used, capacity_);
    make_pages(data_ + line_->paged, paged - line_->paged);
    line_->paged = paged;
  }
  copy_in(at, &head, sizeof head,
          [](std::byte* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); });
  if (head.piece)
    copy_in(at + sizeof head, payload, head.piece,
            [&](std::byte* to, const void* from, std::size_t bytes) { writer.write(to, from, bytes); });
  line_->written.store(end, std::memory_order_release);
}

bool Ring::has_news() const {
  return line_->written.load(std::memory_order_acquire) != line_->taken.load(std::memory_order_relaxed);
}

bool Ring::peek(MessageHead& head) const {
  std::uint64_t at = line_->taken.load(std::memory_order_relaxed);
  if (line_->written_seen == at && (line_->written_seen = line_->written.load(std::memory_order_acquire)) == at)
    return false;
  copy_out(at, &head, sizeof head, false);
  return true;
}

void Ring::take(const MessageHead& head, std::byte* payload) {
  std::uint64_t at = line_->taken.load(std::memory_order_relaxed);
  if (head.piece) copy_out(at + sizeof head, payload, head.piece, is_past_own_caches(head.bytes));
  line_->taken.store(at + sizeof head + head.piece, std::memory_order_release);
}

template <class Write>
void Ring::copy_in(std::uint64_t at, const void* from, std::size_t bytes, Write write) {
  const std::size_t offset = at & (capacity_ - 1);
  const std::size_t first = std::min(bytes, capacity_ - offset);
  write(data_ + offset, from, first);
  write(data_, static_cast<const std::byte*>(from) + first, bytes - first);
}

void Ring::copy_out(std::uint64_t at, void* to, std::size_t bytes, bool past_caches) const {
  const std::size_t offset = at & (capacity_ - 1);
  const std::size_t first = std::min(bytes, capacity_ - offset);
  accdp::copy_out(to, data_ + offset, first, past_caches);
  accdp::copy_out(static_cast<std::byte*>(to) + first, data_, bytes - first, past_caches);
}

}  // namespace accdp
