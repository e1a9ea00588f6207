// A piece of a result arrives whole, and nothing beside it is touched, past the caches and through them.
#include <vector>

#include "check.hpp"
#include "node/copies.hpp"

using namespace accdp;

constexpr std::size_t kMargin = 96;
constexpr std::byte kUntouched{0xEE};

void check_copy(std::size_t bytes, std::size_t to, std::size_t from, bool past_caches) {
  std::vector<std::byte> source(bytes + kMargin), place(bytes + 2 * kMargin, kUntouched);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7 + i / 251);
  copy_out(place.data() + to, source.data() + from, bytes, past_caches);
  for (std::size_t i = 0; i < place.size(); ++i) {
    const bool is_inside = i >= to && i < to + bytes;
    CHECK(place[i] == (is_inside ? source[from + i - to] : kUntouched));
  }
}

int main() {
  for (bool past_caches : {false, true})
    for (std::size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 200, 4096, 10000})
      for (std::size_t to : {0, 1, 8, 33, 63, 64})
        for (std::size_t from : {0, 3, 16, 40}) check_copy(bytes, to, from, past_caches);
}
