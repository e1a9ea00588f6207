#pragma once
#include <mutex>
#include <utility>
#include <vector>

namespace accdp {

/// What something out of our hands may still use is never destroyed.
template <class T>
void keep_for_ever(T value) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<T>;
  std::lock_guard lock(mutex);
  kept->push_back(std::move(value));
}

}  // namespace accdp
