// Broadcast on a node: the source writes chunk after chunk into its slot, the others copy it out. A rank alone copies
// nothing. A message of few chunks is cut into smaller pieces (cost.hpp), so that some ranks read while the source
// writes, if they do not share its core; of a long one that comes part by part the others read one part while the
// source writes the next. Cost: a step for each piece. A short one goes ahead: its source waits for nobody, the others
// for the source. Of a piece whose bytes are all alike, zeros above all, only that one byte is told. Between nodes:
// bcast_stream.cpp.
#include <cstring>
#include <utility>

#include "coll/algorithms.hpp"
#include "coll/bcast_stream.hpp"
#include "node/copies.hpp"

namespace accdp {
namespace {

/// Copies `bytes` at `offset` of the concatenation of `spans` to or from `memory`.
template <class Copy>
void walk(std::span<const Bytes> spans, std::size_t offset, std::size_t bytes, Copy copy) {
  for (const Bytes& span : spans) {
    if (bytes == 0) return;
    if (offset >= span.size()) {
      offset -= span.size();
      continue;
    }
    const std::size_t n = std::min(bytes, span.size() - offset);
    copy(span.data() + offset, n);
    bytes -= n;
    offset = 0;
  }
}

// Shorter pieces are copied in less time than it takes to be told what is in them.
constexpr std::size_t kLeastFilled = 32 << 10;

/// What the source tells of a piece: which byte fills it, so that nothing is in its slot.
struct Filling {
  bool is_filled = false;
  std::byte byte{};
};

/// Of data that differ the first bytes tell.
Filling filling_of(std::span<const Bytes> spans, std::size_t offset, std::size_t bytes) {
  Filling found{true};
  bool is_first = true;
  walk(spans, offset, bytes, [&](const std::byte* at, std::size_t n) {
    if (std::exchange(is_first, false)) found.byte = *at;
    found.is_filled = found.is_filled && *at == found.byte && std::memcmp(at, at + 1, n - 1) == 0;
  });
  return found;
}

void bcast_ahead(Context& c, Bytes data, int source) {
  if (c.local_rank() == source) {
    std::byte* slot = c.open_short();
    c.write(slot, data);
    return c.publish_ahead();
  }
  c.open_unwritten();
  c.publish_ahead();
  c.await(source);
  copy_lines(data.data(), c.short_slot(source), data.size());
}

}  // namespace

bool overlap(ConstBytes a, ConstBytes b) { return a.data() < b.data() + b.size() && b.data() < a.data() + a.size(); }

void copy(Bytes to, ConstBytes from) {
  if (to.data() == from.data() || from.empty()) return;
  if (overlap(to.first(from.size()), from))
    std::memmove(to.data(), from.data(), from.size());
  else
    copy_out(to.data(), from.data(), from.size(), is_past_own_caches(from.size()));
}

void bcast_on_node(Context& c, std::span<const Bytes> spans, int source, std::size_t of_bytes) {
  if (c.local_size() == 1) return;
  std::size_t total = 0;
  for (const Bytes& span : spans) total += span.size();
  of_bytes = std::max(of_bytes, total);
  const std::size_t piece = node_piece_bytes(of_bytes, c.slot_bytes(), c.shape().is_crowded);
  const bool past_caches = is_past_shared_cache(of_bytes * c.local_size());
  std::size_t done = 0;
  do {
    const std::size_t n = std::min(piece, total - done);
    Filling filling;
    if (c.local_rank() == source) {
      std::byte* slot = c.open(n);
      if (n >= kLeastFilled) {
        filling = filling_of(spans, done, n);
        std::memcpy(c.aside(), &filling, sizeof filling);
      }
      if (!filling.is_filled)
        walk(spans, done, n, [&](std::byte* at, std::size_t bytes) { c.write(slot, {at, bytes}), slot += bytes; });
      c.publish();
    } else {
      c.open_unwritten();
      c.publish();
      c.await(source);
      if (n >= kLeastFilled) std::memcpy(&filling, c.short_slot(source), sizeof filling);
      const std::byte* slot = c.slot(source);
      walk(spans, done, n, [&](std::byte* at, std::size_t bytes) {
        if (filling.is_filled) return void(std::memset(at, std::to_integer<int>(filling.byte), bytes));
        copy_out(at, slot, bytes, past_caches), slot += bytes;
      });
    }
    done += n;
  } while (done < total);
}

void bcast(Context& c, Bytes data, int root) {
  if (c.topology().nodes() > 1) {
    const bool is_short = !c.has_met() && bcasts_with_signatures(data.size(), c.shape());
    if (is_short && c.asked().bcast == BcastAlgorithm::kAuto) return bcast_with_signatures(c, data, root);
    return bcast_between_nodes(c, data, root);
  }
  if (c.local_size() == 1) return c.note({"alone"});
  c.note({"chunks", 1, std::min(data.size(), node_piece_bytes(data.size(), c.slot_bytes(), c.shape().is_crowded))});
  if (c.may_go_ahead(data.size())) return bcast_ahead(c, data, c.topology().local_of(root));
  bcast_on_node(c, data, c.topology().local_of(root));
}

}  // namespace accdp
