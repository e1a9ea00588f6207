#include "node/slot_writer.hpp"

#include <array>
#include <memory>

#include "base/deadline.hpp"
#include "base/rounding.hpp"
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

/// So that what is timed next are the stores, not where their data come from, nor memory that is used the first time.
void prepare(std::byte* to, const std::byte* data, std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  for (std::size_t at = 0; at < bytes; at += kLine)
    static_cast<void>(*static_cast<const volatile std::byte*>(data + at));
  for (std::size_t at = 0; at < bytes; at += kPage) *static_cast<volatile std::byte*>(to + at) = data[at];
  *static_cast<volatile std::byte*>(to + bytes - 1) = data[bytes - 1];
}

/// What the slower side of a way through memory takes: stores past the caches, or reading what they wrote.
double measure_memory() {
  constexpr std::size_t kPart = 64 << 10, kParts = 5;
  const auto memory = std::make_unique<std::byte[]>((kParts + 1) * kPart);
  std::byte* const place = memory.get() + kParts * kPart;
  std::array<double, kParts> writing, reading;
  const auto part = [&](std::size_t i) { return memory.get() + i * kPart; };
  for (std::size_t i = 0; i < kParts; ++i)
    writing[i] = ns_per_byte(kPart, [&] { copy_past_caches(part(i), place, kPart); });
  for (std::size_t i = 0; i < kParts; ++i) reading[i] = ns_per_byte(kPart, [&] { copy_lines(place, part(i), kPart); });
  for (auto* times : {&writing, &reading}) std::nth_element(times->begin(), times->begin() + kParts / 2, times->end());
  return std::max(writing[kParts / 2], reading[kParts / 2]);
}

double memory_ns_per_byte() {
  static const double measured = measure_memory();
  return measured;
}

}  // namespace

SlotWriter::SlotWriter()
    : how_(!has_stores_past_caches() || settings().slot_stores == "cached" ? How::kCached
           : settings().slot_stores == "streaming"                         ? How::kStreaming
                                                                           : How::kAuto) {}

SlotWriter::SlotWriter(double memory_ns_per_byte)
    : how_(How::kAuto), choices_{StoreChoice(memory_ns_per_byte), StoreChoice(memory_ns_per_byte)} {}

StoreChoice& SlotWriter::choice_for(std::size_t bytes) {
  std::optional<StoreChoice>& choice = choices_[bytes >= kLongBytes];
  if (!choice) choice.emplace(memory_ns_per_byte());
  return *choice;
}

bool SlotWriter::prefers_copies(std::size_t bytes) {
  if (how_ != How::kAuto || bytes < kLeastBytes) return how_ == How::kStreaming && bytes >= kLeastBytes;
  StoreChoice& choice = choice_for(bytes);
  is_due_ = is_due_ || choice.is_due();
  return is_due_ || choice.past_caches();
}

void SlotWriter::write_part(std::byte* to, const void* from, std::size_t bytes, std::size_t of_bytes) {
  if (how_ == How::kCached || std::max(bytes, of_bytes) < kLeastBytes) return copy_lines(to, from, bytes);
  if (how_ == How::kStreaming) return copy_past_caches(to, from, bytes);
  const auto* data = static_cast<const std::byte*>(from);
  StoreChoice& choice = choice_for(std::max(bytes, of_bytes));
  std::size_t done = 0;
  if (is_due_ || (of_bytes == 0 && choice.is_due())) {
    is_due_ = false;
    done = std::min(bytes, kSampleBytes);
    prepare(to, data, done);
    choice.note(ns_per_byte(done, [&] { copy_lines(to, data, done); }));
  }
  copy_out(to + done, data + done, bytes - done, choice.past_caches());
}

}  // namespace accdp
