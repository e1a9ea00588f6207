#pragma once
#include <map>
#include <mutex>

/// Data that is made once, for ranks that ask for the same again and again. Of a process, and of those that it forks
/// afterwards.
template <class Key, class Data>
class Remembered {
 public:
  template <class Make>
  Data get(const Key& key, Make make) {
    constexpr std::size_t kMost = 300;
    const std::lock_guard lock(mutex_);
    auto found = made_.find(key);
    if (found == made_.end()) {
      if (made_.size() == kMost) made_.clear();
      found = made_.emplace(key, make()).first;
    }
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::map<Key, Data> made_;
};
