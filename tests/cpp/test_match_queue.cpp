// Which of those that wait is the match of a message or receive: the first that was put in, by whatever ranks and tags.
#include "coll/match_queue.hpp"

#include <algorithm>
#include <list>
#include <random>

#include "check.hpp"

using namespace accdp;

namespace {

constexpr int kAny = -1;

/// What a queue must do, looking through all that wait.
class InOrder {
 public:
  void put(std::int64_t tag, int rank, int value) { waiting_.push_back({tag, rank, value}); }
  std::optional<int> take(std::int64_t tag, int rank) {
    const auto found =
        find([&](const One& one) { return one.tag == tag && (rank == one.rank || rank == kAny || one.rank == kAny); });
    if (found == waiting_.end()) return std::nullopt;
    const int value = found->value;
    waiting_.erase(found);
    return value;
  }
  void remove(std::int64_t tag, int rank, int value) {
    const auto found = find([&](const One& one) { return one.tag == tag && one.rank == rank && one.value == value; });
    if (found != waiting_.end()) waiting_.erase(found);
  }
  bool empty() const { return waiting_.empty(); }

 private:
  struct One {
    std::int64_t tag;
    int rank, value;
  };
  std::list<One>::iterator find(auto is_it) { return std::find_if(waiting_.begin(), waiting_.end(), is_it); }
  std::list<One> waiting_;
};

/// Both kinds: what is put in has a rank each, or may be for any.
void as_if_in_order(unsigned seed) {
  std::mt19937 random(seed);
  MatchQueue<int> queue;
  InOrder wanted;
  const auto rank = [&] { return static_cast<int>(random() % 5) - 1; };
  const auto tag = [&] { return static_cast<std::int64_t>(random() % 4) - 2; };
  int taken = 0;
  for (int value = 0; value < 20000; ++value) {
    const std::int64_t t = tag();
    const int r = rank();
    // A queue that grows and shrinks: now more is put in, now more is taken out.
    if (random() % 5 < (value / 500 % 2 ? 3u : 2u)) {
      queue.put(t, r, value);
      wanted.put(t, r, value);
    } else if (random() % 8 == 0) {
      const int some = value - static_cast<int>(random() % 20);
      queue.remove(t, r, some);
      wanted.remove(t, r, some);
    } else {
      const bool has = queue.has(t, r);
      const std::optional<int> got = queue.take(t, r);
      CHECK(got == wanted.take(t, r) && has == got.has_value());
      taken += has;
    }
    CHECK(queue.empty() == wanted.empty());
  }
  CHECK(taken > 1000);
}

}  // namespace

int main() {
  for (unsigned seed = 0; seed < 20; ++seed) as_if_in_order(seed);
}
