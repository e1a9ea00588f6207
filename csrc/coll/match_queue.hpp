#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace accdp {

/// What waits for its match: receives for messages, or messages for receives. Two match if they have one tag and one
/// rank; a rank of -1 stands for any. Of those that match, the one that was put in first is found first, however many
/// others wait.
template <class T>
class MatchQueue {
 public:
  bool empty() const { return waiting_.empty(); }
  void clear() { waiting_.clear(); }

  void put(std::int64_t tag, int rank, T value) {
    const Key key{tag, rank, next_++};
    if (spare_.empty()) return void(waiting_.emplace(key, std::move(value)));
    spare_.key() = key;
    spare_.mapped() = std::move(value);
    waiting_.insert(std::move(spare_));
  }
  bool has(std::int64_t tag, int rank) const { return find(tag, rank) != waiting_.end(); }
  /// Out of the queue, if there is one that matches.
  std::optional<T> take(std::int64_t tag, int rank) {
    const auto found = find(tag, rank);
    if (found == waiting_.end()) return std::nullopt;
    spare_ = waiting_.extract(found);
    return std::exchange(spare_.mapped(), T());
  }
  /// One that was put in under just these, a rank of -1 too.
  void remove(std::int64_t tag, int rank, const T& value) {
    for (auto it = first_of(tag, rank); it != waiting_.end() && is_of(it, tag, rank); ++it)
      if (it->second == value) return void(waiting_.erase(it));
  }

 private:
  static constexpr int kAnyRank = -1;
  struct Key {
    std::int64_t tag;
    int rank;
    std::uint64_t number;  // in the order they were put in
    auto operator<=>(const Key&) const = default;
  };
  using Map = std::map<Key, T>;
  using Place = typename Map::const_iterator;

  Place first_of(std::int64_t tag, int rank) const { return waiting_.lower_bound({tag, rank, 0}); }
  bool is_of(Place it, std::int64_t tag, int rank) const { return it->first.tag == tag && it->first.rank == rank; }
  Place find(std::int64_t tag, int rank) const {
    Place earliest = waiting_.end();
    const auto consider = [&](Place it) {
      if (earliest == waiting_.end() || it->first.number < earliest->first.number) earliest = it;
    };
    if (rank >= 0) {
      for (const int r : {kAnyRank, rank})
        if (const Place it = first_of(tag, r); it != waiting_.end() && is_of(it, tag, r)) consider(it);
      return earliest;
    }
    // The first of each rank.
    for (Place it = first_of(tag, kAnyRank); it != waiting_.end() && it->first.tag == tag;
         it = first_of(tag, it->first.rank + 1))
      consider(it);
    return earliest;
  }

  Map waiting_;
  typename Map::node_type spare_;  // most waits are short, and few: one node's memory does for all of them
  std::uint64_t next_ = 0;
};

}  // namespace accdp
