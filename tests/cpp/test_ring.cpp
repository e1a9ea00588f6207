// The ring between two ranks: records of any size that wrap around its end, in one thread and between two.
#include <deque>
#include <random>
#include <thread>

#include "base/settings.hpp"
#include "check.hpp"
#include "node/ring.hpp"

using namespace accdp;

using Payload = std::vector<std::byte>;

Payload payload(std::uint64_t number, std::size_t bytes) {
  Payload data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(number * 31 + i);
  return data;
}

MessageHead head(std::uint64_t number, std::size_t bytes) {
  return {MessageHead::kEager, static_cast<std::uint32_t>(bytes), static_cast<std::int64_t>(number) - 7, number, bytes};
}

void check_record(const MessageHead& got, const Payload& data, std::uint64_t number) {
  CHECK(got.kind == MessageHead::kEager && got.id == number && got.tag == static_cast<std::int64_t>(number) - 7);
  CHECK(got.bytes == got.piece && data == payload(number, got.piece));
}

/// Random puts and takes against a queue; the ring must hold exactly what the queue holds.
void fuzz(Ring& ring, std::size_t capacity, unsigned seed) {
  std::mt19937 random(seed);
  SlotWriter slots;
  std::deque<std::size_t> model;  // sizes
  std::uint64_t put = 0, taken = 0;
  std::size_t used = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    const std::size_t free = capacity - used;
    CHECK(ring.space() == (free > sizeof(MessageHead) ? free - sizeof(MessageHead) : 0));
    if (random() % 2 && free >= sizeof(MessageHead)) {
      // Often everything that fits, and often nothing but a head.
      const std::size_t room = free - sizeof(MessageHead);
      const std::size_t bytes = random() % 8 == 0 ? room : random() % 8 == 0 ? 0 : random() % (room + 1);
      const Payload data = payload(put, bytes);
      ring.put(head(put, bytes), bytes ? data.data() : nullptr, slots);
      model.push_back(bytes);
      used += sizeof(MessageHead) + bytes;
      ++put;
    } else {
      MessageHead got;
      CHECK(ring.peek(got) == !model.empty());
      if (model.empty()) continue;
      CHECK(got.piece == model.front());
      Payload data(got.piece);
      ring.take(got, data.empty() ? nullptr : data.data());
      check_record(got, data, taken++);
      used -= sizeof(MessageHead) + model.front();
      model.pop_front();
    }
  }
  MessageHead got;
  while (ring.peek(got)) {
    Payload data(got.piece);
    ring.take(got, data.data());
    check_record(got, data, taken++);
  }
  CHECK(taken == put);
}

void between_threads(Ring& ring) {
  constexpr std::uint64_t kRecords = 20000;
  std::thread writer([&] {
    std::mt19937 random(9);
    SlotWriter slots;
    for (std::uint64_t number = 0; number < kRecords; ++number) {
      const std::size_t bytes = random() % 700;
      while (ring.space() < std::max<std::size_t>(bytes, 1)) std::this_thread::yield();
      ring.put(head(number, bytes), payload(number, bytes).data(), slots);
    }
  });
  for (std::uint64_t number = 0; number < kRecords; ++number) {
    MessageHead got;
    while (!ring.peek(got)) std::this_thread::yield();
    Payload data(got.piece);
    ring.take(got, data.data());
    check_record(got, data, number);
  }
  writer.join();
  MessageHead none;
  CHECK(!ring.peek(none));
}

/// Many ranks' rings take no more memory than few ranks' do, but what is sent before anybody asked fits.
void lengths() {
  CHECK(Board::ring_bytes_for(2) == 2 << 20 && Board::ring_bytes_for(8) == 2 << 20);
  CHECK(Board::ring_bytes_for(9) == 1 << 20 && Board::ring_bytes_for(100'000) == 256 << 10);
  set_setting("ACCDP_EAGER_BYTES", "100k");
  CHECK(Board::ring_bytes_for(100'000) == 512 << 10);
  set_setting("ACCDP_RING_BYTES", "4M");
  CHECK(Board::ring_bytes_for(2) == 4 << 20 && Board::ring_bytes_for(8) == 2 << 20);
}

int main() {
  lengths();
  set_setting("ACCDP_EAGER_BYTES", "1k");
  set_setting("ACCDP_RING_BYTES", "4k");
  const Board board(-1, 2, 0);
  CHECK(board.ring_bytes() == 4096);
  Ring there(board, 0, 1), back(board, 1, 0);
  for (unsigned seed = 0; seed < 5; ++seed) fuzz(there, board.ring_bytes(), seed);
  fuzz(back, board.ring_bytes(), 5);
  between_threads(there);
  set_setting("ACCDP_RING_BYTES", "64k");  // room for records that are written past the caches
  for (const char* stores : {"cached", "streaming", "auto"}) {
    set_setting("ACCDP_SLOT_STORES", stores);
    const Board wide(-1, 2, 0);
    Ring ring(wide, 0, 1);
    fuzz(ring, wide.ring_bytes(), 6);
  }
}
