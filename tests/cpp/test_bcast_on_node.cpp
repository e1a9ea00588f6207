// Broadcasts on one node between processes: pieces of all lengths, of mixed data and of bytes that are all alike, which
// are told and not copied.
#include <algorithm>

#include "base/settings.hpp"
#include "coll/cost.hpp"
#include "ranks.hpp"

using namespace accdp;

constexpr std::byte kByte{0xAB};
constexpr int kRanks = 3;

using Data = std::vector<std::byte>;

/// Broadcasts each of `all` from rank 1; returns how many bytes of the node's memory are kByte afterwards.
std::size_t bcast(const std::vector<Data>& all) {
  const Segment segment(kRanks);
  const bool good = run_ranks(
      kRanks,
      [&](Group& group) {
        for (const Data& data : all) {
          Data mine = group.rank() == 1 ? data : Data(data.size(), std::byte{0x11});
          group.bcast(mine, Datatype::kBytes, 1);
          CHECK(mine == data);
        }
      },
      segment);
  CHECK(good);
  Data memory(Board::segment_bytes(kRanks));
  CHECK(pread(segment.fd(), memory.data(), memory.size(), 0) == static_cast<ssize_t>(memory.size()));
  return std::count(memory.begin(), memory.end(), kByte);
}

/// Tensors that are each of one byte, and end within pieces.
void tensors(Group& group) {
  const std::size_t bytes = 300'000;
  std::vector<Data> all{Data(bytes), Data(bytes), Data(1), Data(0), Data(bytes, std::byte{1}), Data(bytes)};
  std::vector<Data> mine = all;
  if (group.rank() != 1)
    for (Data& data : mine) std::fill(data.begin(), data.end(), std::byte{0x11});
  std::vector<Piece> pieces;
  for (Data& data : mine) pieces.push_back({data});
  StreamOptions options;
  options.chunk_bytes = settings().chunk_bytes;
  group.bcast_stream(pieces, 1, options);
  CHECK(mine == all);
}

int main() {
  const std::size_t slot = Board::slot_bytes_for(kRanks, settings().chunk_bytes), large = 5 * slot + 12345;
  const std::size_t piece = node_piece_bytes(large, slot);
  CHECK(piece >= 64 << 10);
  const auto start = [](Data& data, std::size_t bytes) { return data.begin() + static_cast<std::ptrdiff_t>(bytes); };
  Data mixed(large);
  for (std::size_t i = 0; i < large; ++i) mixed[i] = static_cast<std::byte>(i * 7 + i / 251);
  std::vector<Data> all;
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{9000}, std::size_t{70000}, slot, large}) {
    all.push_back(Data(mixed.begin(), start(mixed, bytes)));
    all.push_back(Data(bytes));
    all.push_back(Data(bytes, std::byte{0xFF}));
  }
  // One byte that differs, anywhere; alike within pieces and not between them; pieces of both kinds.
  for (std::size_t at : {std::size_t{0}, std::size_t{1}, piece - 1, piece, 2 * piece - 1, large / 2, large - 1}) {
    all.push_back(Data(large));
    all.back()[at] = std::byte{1};
  }
  all.push_back(Data(large));
  for (std::size_t i = 0; i < large; ++i) all.back()[i] = static_cast<std::byte>(i / piece);
  all.push_back(mixed);
  std::fill_n(start(all.back(), piece), 2 * piece, std::byte{0});
  const std::size_t usual = bcast(all);

  Data alike(large, kByte);
  all.push_back(alike);
  CHECK(bcast(all) < usual + (64 << 10));  // a short last piece is copied
  for (std::size_t i = 0; i < large; i += piece / 2) alike[i] = std::byte{1};
  CHECK(bcast({alike}) > slot);
  CHECK(run_ranks(kRanks, tensors));
}
