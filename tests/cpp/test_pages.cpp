// Pages of the segment: few operations wait for them, and not many more are made than are used.
#include "node/pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "node/ring.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

using namespace accdp;

const std::size_t kPage = sysconf(_SC_PAGESIZE);
constexpr std::size_t kPiece = 12 << 10;

std::size_t with_pages(std::byte* begin, std::size_t bytes) {
  std::vector<unsigned char> there((bytes + kPage - 1) / kPage);
  CHECK(mincore(begin, bytes, there.data()) == 0);
  return kPage * std::count_if(there.begin(), there.end(), [](unsigned char page) { return page & 1; });
}

/// Uses a region by pieces until it is used up; `use()` returns how much of it was used then.
template <class Use>
void few_wait(std::byte* begin, std::size_t bytes, Use use) {
  const std::size_t at_first = with_pages(begin, bytes);
  std::size_t before = at_first, used = 0;
  int waited = 0;
  while (used + 2 * kPiece < bytes) {
    used = use();
    const std::size_t there = with_pages(begin, bytes);
    CHECK(there >= used && there <= std::max<std::size_t>(32 << 10, 2 * used) + at_first + kPage);
    waited += there != before;
    before = there;
  }
  CHECK(before == bytes && waited <= 6 + static_cast<int>(bytes >> 18));  // 12, 28, 56, ..., 448, 704 KiB
}

void of_slots() {
  Board board(-1, 1, 0);
  for (std::uint64_t half : {0, 1}) {
    std::byte* const begin = board.take_slot(half, 64);
    *begin = {};  // stays where it is
    few_wait(begin, board.slot_bytes(), [&] {
      std::byte* const place = board.take_slot(half, kPiece);
      std::memset(place, 1, kPiece);
      return static_cast<std::size_t>(begin + board.slot_bytes() - place);
    });
  }
}

void of_rings() {
  const Board board(-1, 2, 0);
  Ring ring(board, 0, 1);
  SlotWriter writer;
  std::vector<std::byte> data(kPiece);
  std::size_t used = 0;
  const auto use = [&] {
    MessageHead head{MessageHead::kEager, kPiece, 0, 0, kPiece};
    ring.put(head, data.data(), writer);
    CHECK(ring.peek(head));
    ring.take(head, data.data());
    return used += sizeof head + kPiece;
  };
  few_wait(board.ring_data(0, 1), board.ring_bytes(), use);
  CHECK(with_pages(board.ring_data(1, 0), board.ring_bytes()) == 0);
  for (int i = 0; i < 1000; ++i) use();  // round and round
}

int main() {
  Board board(-1, 1, 0);
  if (kPage != 4096 || madvise(&board.mine(), kPage, MADV_POPULATE_WRITE) != 0) {
    std::printf("SKIP: this kernel makes no pages ahead, or other ones\n");
    return kSkipped;
  }
  of_slots();
  of_rings();
  CHECK(pages_ahead(0, 100, 4096) == 4096 && pages_ahead(0, 1 << 20, 2 << 20) == 1 << 20);
  CHECK(pages_ahead(64 << 10, 65 << 10, 1 << 20) == 128 << 10);
  CHECK(pages_ahead(1 << 20, (1 << 20) + 1, 1 << 30) == (1 << 20) + (256 << 10));
}
