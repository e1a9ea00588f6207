// What a node gets of a compressed broadcast or allreduce, contributions and sums, is damaged on the way: flipped, cut,
// followed by more or something else. All ranks fail with CodecError, in this call or the next, or what arrived is
// right all the same (between chunks lies padding).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <random>

#include "group_checks.hpp"

constexpr std::size_t kValues = 100'000;
enum Damage { kFlip, kCut, kEnlarge, kOther, kKinds };

using Floats = std::vector<float>;

/// What one rank has; sums of it are exact.
Floats weights(int rank) {
  std::mt19937 random(3 + rank);
  std::normal_distribution<float> normal(0, 0.02F);
  Floats values(kValues);
  for (float& value : values) value = std::round(normal(random) * 65536) / 65536;
  return values;
}

Floats sum_of_weights(int ranks) {
  Floats sum = weights(0);
  for (int rank = 1; rank < ranks; ++rank) {
    const Floats more = weights(rank);
    std::transform(sum.begin(), sum.end(), more.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

/// Counts the frames, and damages one of them.
struct Fault {
  int frame = -1;
  Damage damage = kFlip;
  std::mt19937 random;
  int seen = 0;

  std::size_t operator()(Bytes room, std::size_t bytes) {
    if (bytes < 1000 || seen++ != frame) return bytes;  // signatures and letters are shorter
    const std::size_t at = random() % bytes;
    switch (damage) {
      case kFlip: room[at] ^= static_cast<std::byte>(1 << random() % 8); return bytes;
      case kCut: return at;
      case kEnlarge: return std::min(room.size(), bytes + 1 + random() % 100);
      default:
        for (std::size_t i = 0; i < bytes; ++i) room[i] = static_cast<std::byte>(random());
        return bytes;
    }
  }
};

/// How many ranks failed. algorithm: of a broadcast, or "allreduce".
int run(const std::vector<int>& nodes, const std::string& algorithm, Fault& fault) {
  const int ranks = static_cast<int>(nodes.size());
  const bool sums = algorithm == "allreduce";
  const Floats wanted = sums ? sum_of_weights(ranks) : weights(0);
  std::atomic<int> failed{0};
  const auto mail = std::make_shared<Mail>();
  mail->arrives = [&](Bytes room, std::size_t bytes) { return fault(room, bytes); };
  const Body body = [&](Group& group) {
    Floats values = sums || group.rank() == 0 ? weights(group.rank()) : Floats(kValues);
    const std::vector<Piece> pieces{{std::as_writable_bytes(std::span(values)), Datatype::kF32}};
    try {
      if (sums)
        group.allreduce_stream(pieces, ReduceOp::kSum, stream_options("fpk", 8192, ""), {});
      else
        group.bcast_stream(pieces, 0, stream_options("fpk", 8192, algorithm));
      group.barrier();
      CHECK(values == wanted);
    } catch (const CodecError& error) {
      CHECK(std::string_view(error.what()).starts_with("rank " + std::to_string(group.rank()) + " of "));
      ++failed;
    }
  };
  run_nodes(nodes, body, kOwnCores, mail);
  return failed;
}

int main() {
  for (const char* algorithm : {"chain", "binomial", "allreduce"}) {
    int detected = 0, damaged = 0;
    for (const auto& nodes : std::vector<std::vector<int>>{{0, 1, 2}, {0, 0, 1, 1}}) {
      Fault none;
      CHECK(run(nodes, algorithm, none) == 0 && none.seen > 3);
      for (int kind = 0; kind < kKinds; ++kind)
        for (int seed = 0; seed < 3; ++seed) {
          Fault fault{(seed * 7 + kind) % none.seen, static_cast<Damage>(kind), std::mt19937(seed)};
          const int failed = run(nodes, algorithm, fault);
          CHECK(failed == 0 || failed == static_cast<int>(nodes.size()));
          ++damaged;
          detected += failed > 0;
        }
    }
    CHECK(detected > damaged * 9 / 10);
  }
}
