#pragma once
#include <algorithm>
#include <cstddef>
#include <map>

#include "base/types.hpp"

namespace accdp {

/// A set of addresses, made of ranges.
class Ranges {
 public:
  void add(ConstBytes range) {
    if (range.empty()) return;
    const std::byte* begin = range.data();
    const std::byte* end = begin + range.size();
    auto it = first_behind(begin);
    while (it != ends_.end() && it->first <= end) {
      begin = std::min(begin, it->first);
      end = std::max(end, it->second);
      it = ends_.erase(it);
    }
    ends_[begin] = end;
  }

  void remove(ConstBytes range) {
    if (range.empty()) return;
    const std::byte* begin = range.data();
    const std::byte* end = begin + range.size();
    for (auto it = first_behind(begin); it != ends_.end() && it->first < end;) {
      const auto [from, to] = *it;
      it = ends_.erase(it);
      if (from < begin) ends_[from] = begin;
      if (to > end) ends_[end] = to;
    }
  }

  /// Calls visit(range) for the parts of `range` that are not in the set, in order.
  template <class Visit>
  void gaps(ConstBytes range, Visit visit) const {
    const std::byte* at = range.data();
    const std::byte* end = at + range.size();
    for (auto it = first_behind(at); it != ends_.end() && it->first < end && at < end; ++it) {
      if (it->first > at) visit(ConstBytes(at, it->first));
      at = std::max(at, it->second);
    }
    if (at < end) visit(ConstBytes(at, end));
  }
  bool has_any(ConstBytes range) const {
    const std::byte* end = range.data() + range.size();
    auto it = first_behind(range.data());
    if (it != ends_.end() && it->second <= range.data()) ++it;
    return it != ends_.end() && it->first < end && !range.empty();
  }

 private:
  using Ends = std::map<const std::byte*, const std::byte*>;  // by begin; no two touch
  /// The first range that ends at or behind `begin`.
  static Ends::const_iterator first_of(const Ends& ends, const std::byte* begin) {
    auto it = ends.upper_bound(begin);
    if (it != ends.begin() && std::prev(it)->second >= begin) --it;
    return it;
  }
  Ends::const_iterator first_behind(const std::byte* begin) const { return first_of(ends_, begin); }

  Ends ends_;
};

}  // namespace accdp
