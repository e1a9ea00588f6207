// What a node gets of a compressed broadcast is damaged on the way: flipped, cut or followed by more. All ranks fail
// with CodecError, in this call or the next, or what arrived is right all the same (between chunks lies padding).
#include <atomic>
#include <random>

#include "group_checks.hpp"

constexpr std::size_t kValues = 100'000;
enum Damage { kFlip, kCut, kEnlarge, kOther, kKinds };

std::vector<float> weights() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> values(kValues);
  for (float& value : values) value = normal(random);
  return values;
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

/// How many ranks failed.
int run(const std::vector<int>& nodes, const std::string& algorithm, Fault& fault) {
  const std::vector<float> wanted = weights();
  std::atomic<int> failed{0};
  const auto mail = std::make_shared<Mail>();
  mail->arrives = [&](Bytes room, std::size_t bytes) { return fault(room, bytes); };
  const Body body = [&](Group& group) {
    std::vector<float> values = group.rank() == 0 ? wanted : std::vector<float>(kValues);
    const Bytes memory = std::as_writable_bytes(std::span(values));
    try {
      group.bcast_stream({{memory, Datatype::kF32}}, 0, stream_options("fpk", 8192, algorithm));
      group.barrier();
      CHECK(values == wanted);
    } catch (const CodecError&) {
      ++failed;
    }
  };
  run_nodes(nodes, body, kOwnCores, mail);
  return failed;
}

int main() {
  int detected = 0, damaged = 0;
  for (const auto& nodes : std::vector<std::vector<int>>{{0, 1, 2}, {0, 0, 1, 1}})
    for (const char* algorithm : {"chain", "binomial"}) {
      Fault none;
      CHECK(run(nodes, algorithm, none) == 0 && none.seen > 3);
      for (int kind = 0; kind < kKinds; ++kind)
        for (unsigned seed = 0; seed < 3; ++seed) {
          Fault fault{static_cast<int>(seed * 7 + kind) % none.seen, static_cast<Damage>(kind), std::mt19937(seed)};
          const int failed = run(nodes, algorithm, fault);
          CHECK(failed == 0 || failed == static_cast<int>(nodes.size()));
          ++damaged;
          detected += failed > 0;
        }
    }
  CHECK(detected > damaged * 9 / 10);
}
