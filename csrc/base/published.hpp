#pragma once
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace accdp {

/// A value that one thread at a time writes and other processes read: they see it whole, or not at all.
template <class Value>
class Published {
 public:
  static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) % 8 == 0);

  void write(const Value& value) noexcept {
    const auto words = std::bit_cast<Words>(value);
    const std::uint64_t turn = turn_.load(std::memory_order_relaxed);
    turn_.store(turn + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_relaxed);
    turn_.store(turn + 2, std::memory_order_release);
  }
  /// Nothing where its writer stands still in the middle.
  std::optional<Value> read() const noexcept {
    for (int tries = 0; tries < 1000; ++tries) {
      const std::uint64_t turn = turn_.load(std::memory_order_acquire);
      Words words;
      for (std::size_t i = 0; i < words.size(); ++i) words[i] = words_[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (turn % 2 == 0 && turn_.load(std::memory_order_relaxed) == turn) return std::bit_cast<Value>(words);
    }
    return std::nullopt;
  }

 private:
  using Words = std::array<std::uint64_t, sizeof(Value) / 8>;
  std::atomic<std::uint64_t> turn_{0};
  std::array<std::atomic<std::uint64_t>, sizeof(Value) / 8> words_{};
};

}  // namespace accdp
