// Compressed broadcasts: processes that are ranks of one node, threads that are ranks of several.
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "codec/nvcomp_api.hpp"
#include "coll/receipts.hpp"
#include "group_checks.hpp"
#include "remembered.hpp"

using Floats = std::vector<float>;
using Names = std::vector<std::string>;

/// Values as weights have them; the same for the same seed on every rank.
Floats weights(std::size_t count, unsigned seed) {
  static Remembered<std::pair<std::size_t, unsigned>, Floats> known;
  return known.get({count, seed}, [&] {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 0.02F);
    Floats values(count);
    for (float& value : values) value = normal(random);
    return values;
  });
}

Bytes memory(Floats& values) { return std::as_writable_bytes(std::span(values)); }

Names working_codecs(Datatype type, bool lossy) {
  Names names;
  for (const CodecRow* row : codec_rows())
    if (row->takes(type) && row->lossy == lossy && row->why_not().empty()) names.push_back(row->name);
  return names;
}

/// Several tensors of several datatypes, sizes around chunks and slots; every codec that is exact, and auto.
void exact(Group& group, const std::string& codec, const std::string& algorithm) {
  StreamOptions options = stream_options(codec, 4096, algorithm);
  for (int root = 0; root < group.size(); ++root)
    for (std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{1024}, std::size_t{1025}, std::size_t{70000}}) {
      const Floats wanted = weights(count, root);
      const Ints ids = input(root, count / 3 + 5);
      const bool is_root = group.rank() == root;
      Floats a = is_root ? wanted : Floats(count, -1), b = is_root ? wanted : Floats(count, -2);
      Ints c = is_root ? ids : Ints(ids.size());
      const StreamReport report = group.bcast_stream(
          {{memory(a), Datatype::kF32}, {bytes(c), Datatype::kI32}, {memory(b), Datatype::kF32}}, root, options);
      CHECK(a == wanted && b == wanted && c == ids);
      CHECK(report.logical_bytes == 8 * count + 4 * ids.size());
    }
}

void every_way(Group& group) {
  Names codecs = working_codecs(Datatype::kF32, false);
  codecs.insert(codecs.end(), {"auto", "none"});
  for (const std::string& codec : codecs)
    for (const char* algorithm : {"auto", "chain", "binomial", "scatter_allgather", "p2p_compressed"})
      exact(group, codec, algorithm);
}

/// Every rank but the root ends with the same values, within the bound; the root keeps its own unless told otherwise.
void bounded(Group& group) {
  for (const std::string& codec : working_codecs(Datatype::kF32, true))
    for (bool relative : {false, true})
      for (bool root_takes_decoded : {false, true}) {
        StreamOptions options = stream_options(codec, 8192, "chain");
        options.root_takes_decoded = root_takes_decoded;
        options.bound = {relative ? 0.01 : 1e-3, relative};
        const int root = group.size() - 1;
        const Floats wanted = weights(50'000, 1);
        const double bound = relative ? 0.01 * 0.02 * 1.02 : 1e-3;  // the sample's deviation is not quite 0.02
        Floats values = group.rank() == root ? wanted : Floats(wanted.size());
        Ints ids = group.rank() == root ? input(1, 100) : Ints(100);
        group.bcast_stream({{memory(values), Datatype::kF32}, {bytes(ids), Datatype::kI32}}, root, options);
        CHECK(ids == input(1, 100));
        double worst = 0;
        for (std::size_t i = 0; i < wanted.size(); ++i)
          worst = std::max<double>(worst, std::abs(values[i] - wanted[i]));
        CHECK(worst <= bound);
        const bool exact_here = group.rank() == root && !root_takes_decoded;
        CHECK(exact_here == (worst == 0) || group.size() == 1);
        // All but an exact root hold the same bits.
        Ints raw(values.size()), most(values.size());
        std::memcpy(raw.data(), values.data(), 4 * raw.size());
        if (exact_here) std::fill(raw.begin(), raw.end(), std::numeric_limits<std::int32_t>::min());
        group.allreduce(bytes(raw), bytes(most), kType, ReduceOp::kMax);
        if (!exact_here) CHECK(raw == most);
      }
}

void against_a_reference(Group& group) {
  for (const char* codec : {"auto", "fpk", "zstd"}) {
    const Floats before = weights(30'000, 2);
    Floats after = before;
    for (std::size_t i = 0; i < after.size(); i += 7) after[i] *= 1.0001F;
    const bool is_root = group.rank() == 0;
    Floats old = before, values = is_root ? after : before;
    // Receivers may give the tensor itself.
    const ConstBytes reference = is_root ? memory(old) : memory(values);
    group.bcast_stream({{memory(values), Datatype::kF32, reference}}, 0, stream_options(codec, 4096, "chain"));
    CHECK(values == after);
  }
}

void wrong_reference(Group& group) {
  Floats old = weights(3000, 3), values = old;
  if (group.rank() == 1) old[7] += 1;
  const Floats kept = values;
  CHECK_THROWS(group.bcast_stream({{memory(values), Datatype::kF32, memory(old)}}, 0, stream_options("auto", 4096, "")),
               MismatchError, "rank 1 (pid");
  CHECK_THROWS(group.barrier(), MismatchError, "against a reference with checksum");
  CHECK(values == kept);
}

StreamOptions bounded_by(double bound, const char* codec) {
  StreamOptions options = stream_options(codec, 4096, "");
  options.bound.value = bound;
  return options;
}

void wrong_options(Group& group) {
  Floats values(100);
  const char* codec = group.rank() == 1 ? "fpk" : "qpk";
  CHECK_THROWS(group.bcast_stream({{memory(values), Datatype::kF32}}, 0, stream_options("qpk", 4096, "")), UsageError,
               "codec=qpk: expected an error_bound");
  CHECK_THROWS(stream_options("nope", 0, ""), UsageError, "codec=nope: expected auto, none, fpk");
  CHECK_THROWS(stream_options("fpk", 5000, ""), UsageError, "chunk_bytes=5000");
  CHECK_THROWS(group.bcast_stream({{memory(values), Datatype::kF32}}, 0, bounded_by(0.1, codec)), MismatchError,
               "disagree on the tensors, codec");
}

/// Compressing really happens where it is asked for, and not where it is hopeless.
void bytes_on_the_wire(Group& group) {
  Floats zeros(100'000), noise(100'000);
  std::mt19937 random(5);
  for (float& value : noise) {
    const std::uint32_t bits = random();
    std::memcpy(&value, &bits, 4);
  }
  const StreamReport few =
      group.bcast_stream({{memory(zeros), Datatype::kF32}}, 0, stream_options("fpk", 65536, "chain"));
  CHECK(few.wire_bytes < few.logical_bytes / 50 && few.codec == "fpk");
  Floats copy = noise;
  const StreamReport all =
      group.bcast_stream({{memory(copy), Datatype::kF32}}, 0, stream_options("auto", 65536, "chain"));
  CHECK(all.wire_bytes < all.logical_bytes + 2048 && all.codec == "none");
}

/// Streams of one kind are timed and go other ways now and then; every one of them arrives, whoever is root.
void again_and_again(Group& group) {
  for (const char* algorithm : {"chain", "binomial", "scatter_allgather"})
    for (int i = 0; i < 20; ++i) {
      const int root = i % group.size();
      const Floats wanted = i % 3 ? weights(40'000, i) : Floats(40'000, 0.5F);
      Floats values = group.rank() == root ? wanted : Floats(wanted.size());
      const StreamReport report =
          group.bcast_stream({{memory(values), Datatype::kF32}}, root, stream_options("auto", 16384, algorithm));
      CHECK(values == wanted);
      CHECK(report.wire_bytes < report.logical_bytes + 2048);
    }
}

/// Every root hears of its streams how long they took; of those of one frame only where it leads its node.
void times_reach_root(Group& group) {
  // Some may be missed: the last one, and what goes while other things are learned of the link.
  constexpr std::uint64_t kStreams = 40, kHalf = kStreams / 2;
  const auto hears_of = [&](std::size_t chunk_bytes) {
    const Floats wanted = weights(20'000, 1);
    const std::uint64_t before = group.streams_timed();
    for (int root = 0; root < group.size(); ++root)
      for (std::uint64_t i = 0; i < kStreams; ++i) {
        Floats values = group.rank() == root ? wanted : Floats(wanted.size());
        group.bcast_stream({{memory(values), Datatype::kF32}}, root, stream_options("auto", chunk_bytes, "chain"));
      }
    return group.streams_timed() - before;
  };
  const std::uint64_t of_long = hears_of(16 << 10), of_short = hears_of(128 << 10);
  CHECK(of_long > kHalf && of_long < kStreams);
  CHECK(group.topology().is_leader() ? of_short > kHalf : of_short <= 1);
}

/// Frames so short that they leave whether or not somebody takes them: of a slow rank, few wait for it.
void frames_await_receipts(int slow, const char* algorithm, const char* codec, int nodes = 3) {
  const auto mail = std::make_shared<Mail>();
  mail->slow = slow;
  const auto body = [&](Group& group) {
    const Floats wanted = weights(128 * 1024, 9);
    Floats values = group.rank() == 0 ? wanted : Floats(wanted.size());
    group.bcast_stream({{memory(values), Datatype::kF32}}, 0, stream_options(codec, 4096, algorithm));
    CHECK(values == wanted);
  };
  std::vector<int> places(nodes);
  std::iota(places.begin(), places.end(), 0);
  run_nodes(places, body, kOwnCores, mail);
  if (nodes == 3) CHECK(mail->most_kept <= ReceiptRule::kMostAhead + 1);  // the signature comes before them
}

/// Whatever the number of frames: no sender waits for a receipt that does not come, none comes that nobody waits for,
/// and few are on their way.
void receipts_match_waits(bool measures_link) {
  for (std::size_t frames = 0; frames < 200; ++frames) {
    for (const std::size_t most_ahead : {ReceiptRule::kMostAhead, std::size_t{13}}) {
      const ReceiptRule rule{frames, measures_link, most_ahead};
      std::size_t arrived = 0, receipts = 0, waits = 0;
      for (std::size_t nth = 1; nth <= frames; ++nth) receipts += rule.has(nth);
      for (std::size_t sent = 0; sent < frames; ++sent)
        while (sent - arrived >= most_ahead) {
          do CHECK(++arrived <= sent);
          while (!rule.has(arrived));
          ++waits;
        }
      CHECK(measures_link ? receipts >= waits : receipts == waits);
      CHECK(measures_link || frames > most_ahead || receipts == 0);
    }
  }
}

/// By messages that each hop encodes anew nodes get different values: root could not take those of all.
void alike_everywhere(Group& group) {
  StreamOptions options = stream_options("qpk", 4096, "p2p_compressed");
  options.bound = {1e-2, true};
  options.root_takes_decoded = true;
  Floats values = group.rank() == 0 ? weights(100'000, 1) : Floats(100'000);
  const StreamReport report = group.bcast_stream({{memory(values), Datatype::kF32}}, 0, options);
  CHECK(report.algorithm == std::string("binomial"));
  Floats most = values, least = values;
  group.allreduce(memory(most), memory(most), Datatype::kF32, ReduceOp::kMax);
  group.allreduce(memory(least), memory(least), Datatype::kF32, ReduceOp::kMin);
  CHECK(most == least && most != weights(100'000, 1));
}

int main() {
  if (const char* folder = std::getenv("ACCDP_TEST_NVCOMP_DIR")) set_nvcomp_directory(folder);
  set_setting("ACCDP_CACHE_DIR", "-");
  set_setting("ACCDP_CHUNK_BYTES", "32k");
  for (int size : {1, 2, 3}) CHECK(run_ranks(size, every_way));
  for (const std::vector<int>& nodes : {std::vector{0, 1}, {0, 0, 1, 1}, {0, 1, 0, 2}, {0, 1, 2, 3, 4}})
    run_nodes(nodes, every_way);
  for (const Body& body : {Body(bounded), Body(against_a_reference)}) {
    for (int size : {1, 2, 3}) CHECK(run_ranks(size, body));
    for (const std::vector<int>& nodes : {std::vector{0, 1}, {0, 0, 1, 1}, {0, 1, 2}}) run_nodes(nodes, body);
  }
  run_nodes({0, 1, 2, 3}, alike_everywhere);
  for (const Body& body : {Body(wrong_reference), Body(wrong_options)}) {
    CHECK(run_ranks(3, body));
    run_nodes({0, 1, 2}, body);
  }
  run_nodes({0, 1, 2}, bytes_on_the_wire);
  receipts_match_waits(false);
  receipts_match_waits(true);
  for (int slow : {0, 1, 2})
    for (const char* algorithm : {"chain", "binomial", "scatter_allgather"})
      for (const char* codec : {"none", "zstd"}) frames_await_receipts(slow, algorithm, codec);
  for (const char* algorithm : {"chain", "binomial", "scatter_allgather"}) {
    frames_await_receipts(-1, algorithm, "none", 14);
    frames_await_receipts(-1, algorithm, "none", 18);
  }
  for (const std::vector<int>& nodes : {std::vector{0, 1}, {0, 0, 1, 1}, {0, 1, 2, 3}})
    run_nodes(nodes, again_and_again);
  set_setting("ACCDP_CHUNK_BYTES", "256k");
  for (const std::vector<int>& nodes : {std::vector{0, 1}, {0, 0, 1, 1}, {0, 1, 2, 3}})
    run_nodes(nodes, times_reach_root);
}
