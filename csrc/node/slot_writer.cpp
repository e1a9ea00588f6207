#include "node/slot_writer.hpp"

#include <memory>

#include "base/deadline.hpp"
#include "base/settings.hpp"
#include "node/copies.hpp"

namespace accdp {
namespace {

// Shorter ones are written faster than memory answers at all.
constexpr std::size_t kLeastBytes = 4 << 10;
// Of a piece that is written past the caches, what is written by ordinary stores to see what they cost.
constexpr std::size_t kSampleBytes = 16 << 10;
constexpr std::size_t kLongBytes = 128 << 10;

template <class Body>
double ns_per_byte(std::size_t bytes, Body body) {
  const auto began = Clock::now();
  body();
  return std::chrono::duration<double, std::nano>(Clock::now() - began).count() / static_cast<double>(bytes);
}

/// What a core takes to read what was written past its caches, of this machine.
double measure_read_back() {
  constexpr std::size_t kPart = 64 << 10, kParts = 5;
  const auto memory = std::make_unique<std::byte[]>((kParts + 1) * kPart);
  std::byte* const place = memory.get() + kParts * kPart;
  double times[kParts];
  for (std::size_t part = 0; part < kParts; ++part) copy_past_caches(memory.get() + part * kPart, place, kPart);
  for (std::size_t part = 0; part < kParts; ++part)
    times[part] = ns_per_byte(kPart, [&] { copy_lines(place, memory.get() + part * kPart, kPart); });
  std::nth_element(times, times + kParts / 2, times + kParts);
  return times[kParts / 2];
}

double read_back_ns_per_byte() {
  static const double measured = measure_read_back();
  return measured;
}

}  // namespace

SlotWriter::SlotWriter()
    : how_(!has_stores_past_caches() || settings().slot_stores == "cached" ? How::kCached
           : settings().slot_stores == "streaming"                         ? How::kStreaming
                                                                           : How::kAuto) {}

StoreChoice& SlotWriter::choice_for(std::size_t bytes) noexcept {
  std::optional<StoreChoice>& choice = choices_[bytes >= kLongBytes];
  if (!choice) choice.emplace(read_back_ns_per_byte());
  return *choice;
}

bool SlotWriter::prefers_copies(std::size_t bytes) noexcept {
  if (how_ != How::kAuto || bytes < kLeastBytes) return how_ == How::kStreaming && bytes >= kLeastBytes;
  StoreChoice& choice = choice_for(bytes);
  is_due_ = is_due_ || choice.is_due();
  return is_due_ || choice.past_caches();
}

void SlotWriter::write(std::byte* to, const void* from, std::size_t bytes, std::size_t of_bytes) noexcept {
  if (how_ == How::kCached || bytes < kLeastBytes) return copy_lines(to, from, bytes);
  if (how_ == How::kStreaming) return copy_past_caches(to, from, bytes);
  StoreChoice& choice = choice_for(std::max(bytes, of_bytes));
  std::size_t done = 0;
  if (is_due_ || choice.is_due()) {
    is_due_ = false;
    done = std::min(bytes, kSampleBytes);
    choice.note(ns_per_byte(done, [&] { copy_lines(to, from, done); }));
  }
  copy_out(to + done, static_cast<const std::byte*>(from) + done, bytes - done, choice.past_caches());
}

}  // namespace accdp
