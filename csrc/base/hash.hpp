#pragma once
#include <cstdint>
#include <initializer_list>

namespace accdp {

/// FNV-1a, a word at a time: for what ranks or calls are compared by.
class Hash {
 public:
  Hash() = default;
  explicit Hash(std::uint64_t before) noexcept : value_(before) {}  ///< goes on from another's value

  Hash& add(std::uint64_t word) noexcept {
    value_ = (value_ ^ word) * 1099511628211u;
    return *this;
  }
  Hash& add(std::initializer_list<std::uint64_t> words) noexcept {
    for (std::uint64_t word : words) add(word);
    return *this;
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037u;
};

}  // namespace accdp
