// What is written into slots arrives whole in every way, and the way is the one that costs less.
#include "node/slot_writer.hpp"

#include <functional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/settings.hpp"
#include "check.hpp"
#include "node/copies.hpp"

using namespace accdp;

constexpr double kMemory = 0.12;                              // ns per byte
constexpr double kOneCore = 0.04, kNear = 0.15, kFar = 0.58;  // of ordinary stores
constexpr double kPreempted = 60;

/// Writes so many pieces; returns for how many of them ordinary stores were chosen without being due.
int write(StoreChoice& choice, int pieces, const std::function<double(int)>& cost) {
  int cached = 0;
  for (int i = 0; i < pieces; ++i) {
    const bool is_due = choice.is_due();
    if (is_due) choice.note(cost(i));
    cached += !is_due && !choice.past_caches();
  }
  return cached;
}

void near_stays_in_caches() {
  for (double cost : {kOneCore, kNear}) {
    StoreChoice choice(kMemory);
    write(choice, 1000, [&](int) { return cost; });
    CHECK(!choice.past_caches());
  }
}

void far_goes_past_caches() {
  StoreChoice choice(kMemory);
  CHECK(write(choice, 1000, [](int) { return kFar; }) == 0);
  CHECK(choice.past_caches());
  int due = 0;
  for (int i = 0; i < 320; ++i) due += choice.is_due();
  CHECK(due == 10);  // what ordinary stores would cost is looked at seldom
}

/// Others have this core at times: that is no distance.
void a_lost_core_is_not_far() {
  StoreChoice choice(kMemory);
  write(choice, 4000, [](int i) { return i % 5 ? kPreempted : kNear; });
  CHECK(!choice.past_caches());
}

/// A rank may come to run elsewhere.
void follows_ranks_that_move() {
  StoreChoice choice(kMemory);
  write(choice, 100, [](int) { return kFar; });
  CHECK(choice.past_caches());
  for (double near : {kOneCore, kNear}) {
    write(choice, 40, [&](int) { return near; });
    CHECK(!choice.past_caches());
    write(choice, 200, [](int) { return kFar; });
    CHECK(choice.past_caches());
  }
  write(choice, 40, [](int) { return kNear; });
  const int late = write(choice, 200, [](int) { return kFar; });
  CHECK(choice.past_caches() && late < 64);
}

void arrives_whole(SlotWriter& writer, std::size_t bytes, std::size_t to, std::size_t from) {
  constexpr std::size_t kMargin = 96;
  constexpr std::byte kUntouched{0xEE};
  std::vector<std::byte> source(bytes + kMargin), place(bytes + 2 * kMargin, kUntouched);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7 + i / 251);
  writer.write(place.data() + to, source.data() + from, bytes);
  for (std::size_t i = 0; i < place.size(); ++i)
    CHECK(place[i] == (i >= to && i < to + bytes ? source[from + i - to] : kUntouched));
}

/// What the writer times decides: no memory is as fast as free, and all caches are faster than one that takes for ever.
void what_stores_cost_decides() {
  std::vector<std::byte> source(32 << 10), place(32 << 10);
  for (const auto& [memory_ns_per_byte, goes_past] : {std::pair{0.0, true}, {1e9, false}}) {
    SlotWriter writer(memory_ns_per_byte);
    for (std::size_t bytes : {std::size_t{4096}, source.size()})  // one kind of pieces, of two lengths
      for (int piece = 0; piece < 8; ++piece) writer.write(place.data(), source.data(), bytes);
    int copies = 0;
    for (int piece = 0; piece < 100; ++piece) {
      copies += writer.prefers_copies(source.size());
      // A piece in parts is one piece: only its first part is looked at.
      for (int part = 0; part < 4; ++part)
        writer.write_part(place.data(), source.data(), source.size() / 4, source.size());
    }
    CHECK(goes_past ? copies == 100 : copies < 30);
    CHECK(!writer.prefers_copies(64));
  }
}

void settings_decide() {
  for (const char* stores : {"cached", "streaming", "auto"}) {
    set_setting("ACCDP_SLOT_STORES", stores);
    SlotWriter writer;
    for (std::size_t bytes : {0, 1, 63, 2047, 2048, 4095, 4096, 5000, 16384, 16385, 70'001})
      for (std::size_t to : {0, 1, 8, 63, 64})
        for (std::size_t from : {0, 3, 16, 40}) {
          if (from == 3) writer.prefers_copies(bytes);
          arrives_whole(writer, bytes, to, from);
        }
    const bool is_streaming = std::string(stores) == "streaming" && has_stores_past_caches();
    if (std::string(stores) != "auto") CHECK(writer.prefers_copies(64 << 10) == is_streaming);
    CHECK(!writer.prefers_copies(64));
  }
  CHECK_THROWS(set_setting("ACCDP_SLOT_STORES", "fast"), UsageError, "expected auto, cached or streaming");
}

int main() {
  near_stays_in_caches();
  far_goes_past_caches();
  a_lost_core_is_not_far();
  follows_ranks_that_move();
  what_stores_cost_decides();
  settings_decide();
}
