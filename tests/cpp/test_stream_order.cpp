// In which order a compressed broadcast does things, seen where messages leave and come; no clock is asked.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>

#include "codec/frame.hpp"
#include "group_checks.hpp"

namespace {

using Floats = std::vector<float>;

// Frames of one chunk each, encoded too long for the wire to keep a copy: a send is complete when its frame was taken.
constexpr std::size_t kFrame = 16384, kFrames = 9, kCount = kFrame * (kFrames - 1) + 5000;
constexpr const char* kAlgorithms[] = {"chain", "binomial", "scatter_allgather"};

Floats weights(int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02F);
  Floats values(kCount);
  for (float& value : values) value = normal(random);
  return values;
}

std::span<float> of_frame(Floats& values, std::size_t frame) {
  return std::span(values).subspan(frame * kFrame, std::min(kFrame, kCount - frame * kFrame));
}

/// Number of the frame that a message is; nothing if it is none.
std::optional<std::size_t> frame_in(ConstBytes message) {
  FrameHead head;
  if (message.size() < sizeof head) return {};
  std::memcpy(&head, message.data(), sizeof head);
  if (head.magic != FrameHead::kMagic) return {};
  CHECK(head.first_chunk < kFrames && (message.size() > Mail::kCopied || head.first_chunk == kFrames - 1));
  return head.first_chunk;
}

StreamReport bcast(Group& group, Floats& values, const char* algorithm) {
  return group.bcast_stream({{std::as_writable_bytes(std::span(values)), Datatype::kF32}}, 0,
                            stream_options("fpk", kFrame * sizeof(float), algorithm));
}

/// What a node passes on it has not decoded yet, and it is what the root sent, byte for byte.
void nodes_pass_on_before_they_decode(const std::vector<int>& nodes, const char* algorithm) {
  const Floats wanted = weights(1);
  std::vector<Floats> values(nodes.size(), Floats(kCount));
  values[0] = wanted;
  std::mutex mutex;
  std::map<std::size_t, std::vector<std::byte>> sent;
  std::atomic<int> passed_on{0};
  const auto mail = std::make_shared<Mail>();
  mail->leaves = [&](int from, int, ConstBytes message) {
    const auto frame = frame_in(message);
    if (!frame) return;
    std::lock_guard lock(mutex);
    if (from == 0) {
      sent[*frame].assign(message.begin(), message.end());
      return;
    }
    CHECK(std::ranges::equal(message, sent.at(*frame)));
    const std::span<float> place = of_frame(values[from], *frame);
    CHECK(std::all_of(place.begin(), place.end(), [](float value) { return value == 0; }));
    ++passed_on;
  };
  const Body body = [&](Group& group) {
    Floats& mine = values[group.rank()];
    bcast(group, mine, algorithm);
    CHECK(mine == wanted);
  };
  run_nodes(nodes, body, kOwnCores, mail);
  CHECK(sent.size() == kFrames && passed_on >= static_cast<int>(kFrames));
}

/// A frame comes no sooner than the next one has left, and when it leaves the next one's values are not there yet: the
/// root encodes a frame when the one before has left it, and does not wait until that one has come.
void root_encodes_while_frames_travel(const std::vector<int>& nodes, const char* algorithm) {
  Floats source = weights(1), wanted = weights(2);
  std::copy_n(source.begin(), kFrame, wanted.begin());
  std::atomic<int> last_sent{-1};
  std::atomic<bool> kept_order{true};
  const auto mail = std::make_shared<Mail>();
  mail->leaves = [&](int from, int, ConstBytes message) {
    const auto frame = frame_in(message);
    if (!frame || from != 0) return;
    // Frames leave in order, each to one node or to several.
    const int number = static_cast<int>(*frame);
    if (number != last_sent && number != last_sent + 1) kept_order = false;
    last_sent = number;
    if (*frame + 1 == kFrames) return;
    const std::span<float> now = of_frame(wanted, *frame + 1), next = of_frame(source, *frame + 1);
    std::copy(now.begin(), now.end(), next.begin());
  };
  mail->has_come = [&](int from, int, ConstBytes message) {
    const auto frame = frame_in(message);
    return !frame || from != 0 || *frame + 1 == kFrames || last_sent > static_cast<int>(*frame);
  };
  const Body body = [&](Group& group) {
    Floats other(kCount), &mine = group.rank() == 0 ? source : other;
    bcast(group, mine, algorithm);
    CHECK(mine == wanted);
  };
  run_nodes(nodes, body, kOwnCores, mail);
  CHECK(kept_order && last_sent == kFrames - 1);
}

/// However many nodes a ring has: a send is complete when its frame was taken, and root sends each node's block in
/// turn.
void a_long_ring_goes_round(const char* codec) {
  constexpr int kNodes = 42;
  std::vector<int> nodes(kNodes);
  std::iota(nodes.begin(), nodes.end(), 0);
  constexpr std::size_t kEach = 4096;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  Floats wanted(kEach * (kNodes + 6));
  for (float& value : wanted) value = normal(random);
  run_nodes(nodes, [&](Group& group) {
    Floats mine = group.rank() == 0 ? wanted : Floats(wanted.size());
    group.bcast_stream({{std::as_writable_bytes(std::span(mine)), Datatype::kF32}}, 0,
                       stream_options(codec, kEach * sizeof(float), "scatter_allgather"));
    CHECK(mine == wanted);
  });
}

/// Ranks of a node share what one of them decoded.
void one_decodes_for_its_node(Group& group) {
  const Floats wanted = weights(1);
  for (const char* algorithm : kAlgorithms) {
    Floats mine = group.rank() == 0 ? wanted : Floats(kCount);
    const StreamReport report = bcast(group, mine, algorithm);
    CHECK(mine == wanted);
    const Topology& t = group.topology();
    const bool decodes = t.nodes() == 1 ? t.rank() != 0 : t.is_leader() && t.rank() != 0;
    CHECK((report.decode_s > 0) == decodes && (report.encode_s > 0) == (t.rank() == 0));
  }
}

}  // namespace

int main() {
  set_setting("ACCDP_CACHE_DIR", "-");
  for (const std::vector<int>& nodes : {std::vector{0, 1, 2, 3}, {0, 0, 1, 1, 2, 3}})
    for (const char* algorithm : kAlgorithms) nodes_pass_on_before_they_decode(nodes, algorithm);
  for (const std::vector<int>& nodes : {std::vector{0, 1}, {0, 0, 1, 1}, {0, 1, 2}})
    for (const char* algorithm : {"chain", "binomial"}) root_encodes_while_frames_travel(nodes, algorithm);
  for (const std::vector<int>& nodes : {std::vector{0, 0, 1, 1}, {0, 1, 1, 1, 2, 2}, {0, 0, 0}})
    run_nodes(nodes, one_decodes_for_its_node);
  for (const char* codec : {"none", "fpk"}) a_long_ring_goes_round(codec);
}
