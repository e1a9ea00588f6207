#include "gpu/pinned_pool.hpp"

#include <algorithm>
#include <bit>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/keep.hpp"
#include "base/rounding.hpp"
#include "base/settings.hpp"

namespace accdp {
namespace {

constexpr std::size_t kLeast = 64 << 10, kMostWindow = 8 << 20;
// For memory that a device has yet to leave. To go through pageable memory instead costs about as long, of the most
// that is kept by default.
constexpr std::chrono::milliseconds kRoomPatience{10};
constexpr std::chrono::microseconds kRoomLook{50};

std::size_t limit() { return static_cast<std::size_t>(settings().gpu_pinned_bytes); }

/// Four sizes per octave: at most a quarter of a block is not used.
std::size_t block_bytes(std::size_t bytes) {
  const std::size_t step = std::max(kLeast, std::bit_floor(bytes) / 4);
  return round_up(std::max<std::size_t>(bytes, 1), step);
}

using Blocks = std::vector<std::unique_ptr<PinnedBlock>>;
std::size_t bytes_of(const PinnedBlock& block) { return block.memory.span().size(); }

bool is_idle(const PinnedBlock& block) {
  return std::ranges::all_of(block.used_until, [](const Event& event) { return !event || is_done(event); });
}

struct Store {
  std::mutex mutex;
  Blocks kept;  // the one that was used last comes last
  std::size_t kept_bytes = 0, lent_bytes = 0, dropped_bytes = 0;

  std::size_t all_bytes() const { return kept_bytes + lent_bytes + dropped_bytes; }

  std::unique_ptr<PinnedBlock> remove(Blocks::iterator which) {
    std::unique_ptr<PinnedBlock> block = std::move(*which);
    kept.erase(which);
    kept_bytes -= bytes_of(*block);
    return block;
  }

  /// Before find() and make_room(), which must see the same: what a device has just done with is not to be freed for
  /// want of memory.
  void look() {
    for (const auto& block : kept) block->is_free = is_idle(*block);
  }

  /// Of what is kept and no device uses, the smallest that suffices, up to so large; null if there is none.
  std::unique_ptr<PinnedBlock> find(std::size_t bytes, std::size_t most) {
    auto best = kept.end();
    for (auto it = kept.begin(); it != kept.end(); ++it) {
      const std::size_t has = bytes_of(**it);
      if (has < bytes || has > most || !(*it)->is_free) continue;
      if (best == kept.end() || has < bytes_of(**best)) best = it;
    }
    return best == kept.end() ? nullptr : remove(best);
  }

  /// Moves what no device uses to `dropped`, for free(), the longest unused first, until there is room for so many more
  /// bytes. False where that is not enough; then nothing is moved, unless it was for no bytes.
  bool make_room(std::size_t bytes, Blocks& dropped) {
    std::size_t all = kept_bytes + lent_bytes + bytes;
    std::vector<bool> goes;
    const bool may_go = !keeps_all_memory();
    for (const auto& block : kept) {
      goes.push_back(may_go && all > limit() && block->is_free);
      if (goes.back()) all -= bytes_of(*block);
    }
    if (bytes > 0 && all + dropped_bytes > limit()) return false;  // what others drop is not free yet
    for (std::size_t i = kept.size(); i-- > 0;) {
      if (!goes[i]) continue;
      dropped.push_back(remove(kept.begin() + static_cast<std::ptrdiff_t>(i)));
      dropped_bytes += bytes_of(*dropped.back());
    }
    return true;
  }

  /// Not with the mutex held: it may wait for all that devices do.
  void free(Blocks& dropped) {
    if (dropped.empty()) return;
    std::size_t bytes = 0;
    for (const auto& block : dropped) bytes += bytes_of(*block);
    dropped.clear();
    std::lock_guard lock(mutex);
    dropped_bytes -= bytes;
  }
};

Store& store() {
  static auto* const it = new Store;  // never destroyed: no CUDA call after main()
  return *it;
}

/// Frees what is more than the setting, which may be less than it was, as far as no device uses it.
void trim() {
  Blocks dropped;
  {
    std::lock_guard lock(store().mutex);
    store().look();
    store().make_room(0, dropped);
  }
  store().free(dropped);
}

/// largest: for want of a smaller one. most: of what is on loan then, all together.
PinnedLease take(std::size_t bytes, std::size_t largest, std::size_t most) {
  const RelaxedCapture relaxed;
  trim();
  Store& s = store();
  Blocks dropped;
  const auto given_up = Clock::now() + kRoomPatience;
  std::unique_lock lock(s.mutex);
  while (true) {
    if (s.lent_bytes + bytes > most) return {};
    s.look();
    if (std::unique_ptr<PinnedBlock> found = s.find(bytes, std::min(largest, most - s.lent_bytes))) {
      s.lent_bytes += bytes_of(*found);
      return PinnedLease(std::move(found));
    }
    if (s.make_room(bytes, dropped)) break;
    // Devices use what is kept. A stream may wait for a rank that is gone, so this must have an end.
    if (Clock::now() >= given_up) return {};
    lock.unlock();
    std::this_thread::sleep_for(kRoomLook);
    lock.lock();
  }
  s.lent_bytes += bytes;  // before it is there: others see that the room is taken
  lock.unlock();
  const auto has_none = [&] {
    lock.lock();
    s.lent_bytes -= bytes;
  };
  try {
    s.free(dropped);
    auto made = std::make_unique<PinnedBlock>();
    made->memory = PinnedBuffer::if_any(bytes);
    if (made->memory.data()) return PinnedLease(std::move(made));
  } catch (...) {
    has_none();
    throw;
  }
  has_none();
  return {};
}

}  // namespace

PinnedLease::Use::~Use() {
  try {
    const int device = current_device();
    if (block_.device != device)
      for (Event& event : block_.used_until) event = {};
    block_.device = device;
    Event& event = block_.used_until[half_];
    if (!event) event = make_event();
    record(event, stream_);
  } catch (const CudaError& error) {
    block_.trouble = error.what();
  }
}

void PinnedLease::await(std::size_t half) {
  if (!block_->trouble.empty()) throw CudaError(block_->trouble);
  if (block_->used_until[half]) synchronize(block_->used_until[half]);
}

void PinnedLease::GiveBack::operator()(PinnedBlock* returned) const noexcept {
  std::unique_ptr<PinnedBlock> block(returned);
  if (!block->trouble.empty()) return keep_for_ever(std::move(block));  // counts as lent from now on
  const RelaxedCapture relaxed;
  Store& s = store();
  {
    std::lock_guard lock(s.mutex);
    s.lent_bytes -= bytes_of(*block);
    s.kept_bytes += bytes_of(*block);
    s.kept.push_back(std::move(block));
  }
  trim();
}

PinnedLease hold_pinned(std::size_t bytes) {
  const std::size_t block = block_bytes(std::min(bytes, limit() + 1));
  return take(block, 2 * block, limit() - most_window_bytes());
}

PinnedLease pinned_window(std::size_t bytes) {
  const std::size_t most = most_window_bytes();
  return most == 0 ? PinnedLease() : take(std::min(block_bytes(bytes), most), most, limit());
}

std::size_t most_window_bytes() {
  const std::size_t most = std::bit_floor(std::min(kMostWindow, limit() / 2));
  return most < kLeast ? 0 : most;
}

std::size_t pinned_bytes() {
  std::lock_guard lock(store().mutex);
  return store().all_bytes();
}

}  // namespace accdp
