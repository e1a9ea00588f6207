// How a stream is cut and which way it goes: thousands of shapes, no ranks.
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/error.hpp"
#include "check.hpp"
#include "codec/crc32c.hpp"
#include "codec/policy.hpp"
#include "codec/spread.hpp"
#include "coll/link_meter.hpp"
#include "coll/schedule.hpp"
#include "coll/stream.hpp"

using namespace accdp;

/// Plays all places at once: each takes the next hop of its list when the frame it waits for has been sent.
void play(BcastAlgorithm algorithm, int places, std::size_t frames) {
  std::vector<std::vector<Hop>> hops;
  for (int place = 0; place < places; ++place) hops.push_back(bcast_schedule(algorithm, places, place, frames));
  std::map<std::pair<int, int>, std::vector<std::size_t>> mail;  // from, to
  std::vector<std::size_t> next(places);
  std::vector<std::set<std::size_t>> seen(places);
  for (bool moved = true; moved;) {
    moved = false;
    for (int place = 0; place < places; ++place) {
      if (next[place] == hops[place].size()) continue;
      const Hop& hop = hops[place][next[place]];
      CHECK((hop.from < 0) == (place == 0));
      if (hop.from >= 0) {
        auto& letters = mail[{hop.from, place}];
        if (letters.empty()) continue;
        CHECK(letters.front() == hop.frame);  // in order, or MPI would hand over the wrong one
        letters.erase(letters.begin());
      }
      CHECK(seen[place].insert(hop.frame).second);
      for (int to : hop.to) {
        CHECK(to > 0 && to < places && to != place);
        mail[{place, to}].push_back(hop.frame);
      }
      ++next[place];
      moved = true;
    }
  }
  for (int place = 0; place < places; ++place) CHECK(seen[place].size() == frames);
  for (const auto& [route, letters] : mail) CHECK(letters.empty());
}

void schedules() {
  for (const BcastAlgorithmRow& row : bcast_algorithm_rows()) {
    CHECK(bcast_algorithm_named(row.name) == row.id && std::string(name_of(row.id)) == row.name);
    for (int places = 1; places <= 17; ++places)
      for (std::size_t frames : {1, 2, 3, 7, 16, 33}) play(row.id, places, frames);
  }
  CHECK_THROWS(bcast_algorithm_named("ring"), UsageError, "expected one of auto, chain");
}

void costs() {
  const LinkSpeed slow{125e6, 50e-6};
  // Long streams go by the chain, whose every link carries each byte once; a single frame by the tree.
  CHECK(choose_bcast(8, 256, 64 << 20, slow) == BcastAlgorithm::kChain);
  CHECK(choose_bcast(8, 1, 1000, slow) == BcastAlgorithm::kBinomial);
  CHECK(choose_bcast(2, 1, 1000, slow) == BcastAlgorithm::kChain);
  const double limit = (64 << 20) / slow.bytes_per_s;
  const double chain = bcast_seconds(BcastAlgorithm::kChain, 4, 256, 64 << 20, slow);
  CHECK(chain > limit && chain < 1.15 * limit);
  CHECK(bcast_seconds(BcastAlgorithm::kBinomial, 4, 256, 64 << 20, slow) > 1.9 * limit);
}

std::vector<Piece> pieces_of(const std::vector<std::pair<std::size_t, Datatype>>& shapes, bool lossy) {
  static std::byte memory[1];
  std::vector<Piece> pieces;
  for (auto [bytes, type] : shapes) pieces.push_back({{memory, bytes}, type, {}, lossy && is_real_float(type), 0});
  return pieces;
}

void plans() {
  const std::vector<std::vector<std::pair<std::size_t, Datatype>>> shapes = {
      {},
      {{0, Datatype::kF32}},
      {{4, Datatype::kF32}, {0, Datatype::kF32}, {8, Datatype::kF32}},
      {{4096, Datatype::kF32}, {4100, Datatype::kF32}, {12, Datatype::kI64}, {100, Datatype::kF32}},
      {{1 << 20, Datatype::kBF16}, {2, Datatype::kBF16}, {1 << 20, Datatype::kBF16}},
  };
  for (const auto& shape : shapes)
    for (bool lossy : {false, true})
      for (std::size_t chunk : {64, 4096, 1 << 18}) {
        const std::vector<Piece> pieces = pieces_of(shape, lossy);
        const StreamPlan plan(pieces, chunk);
        std::size_t bytes = 0, chunks = 0, total = 0;
        for (const Piece& piece : pieces) total += piece.data.size();
        CHECK(plan.bytes() == total);
        std::size_t piece = 0, offset = 0;  // where the next chunk has to begin
        for (const StreamPlan::Chunk& one : plan.chunks()) {
          CHECK(one.bytes > 0 && one.bytes <= chunk);
          std::size_t covered = 0;
          for (const Bytes& span : spans_of(pieces, one)) covered += span.size();
          CHECK(covered == one.bytes);
          while (offset == pieces[piece].data.size()) ++piece, offset = 0;
          CHECK(one.piece <= piece && pieces[one.piece].type == pieces[piece].type);
          for (std::size_t left = one.bytes; left;) {
            while (offset == pieces[piece].data.size()) ++piece, offset = 0;
            CHECK(pieces[piece].type == pieces[one.piece].type);
            CHECK(!pieces[piece].lossy || piece == one.piece);
            const std::size_t n = std::min(left, pieces[piece].data.size() - offset);
            left -= n;
            offset += n;
          }
        }
        CHECK(!plan.frames().empty());
        for (const StreamPlan::Frame& frame : plan.frames()) {
          CHECK(frame.first == chunks && frame.bytes <= chunk);
          chunks += frame.chunks;
          bytes += frame.bytes;
        }
        CHECK(chunks == plan.chunks().size() && bytes == total);
      }
  // Many small tensors share messages.
  const std::vector<Piece> small = pieces_of(std::vector(1000, std::pair{std::size_t{64}, Datatype::kF32}), false);
  CHECK(StreamPlan(small, 1 << 18).frames().size() == 1);
  const std::vector<Piece> lossy = pieces_of(std::vector(1000, std::pair{std::size_t{64}, Datatype::kF32}), true);
  CHECK(StreamPlan(lossy, 1 << 18).frames().size() == 1000 / 32 + 1);
}

void policy() {
  Journey journey{64 << 20, 256 << 10, 3, 125e6, 50e-6};
  const CodecCost fast{1.4, 6e9, 8e9}, slow{1.5, 0.5e9, 1e9}, useless{1.0, 5e9, 5e9};
  const CodecCost all[] = {fast, slow, useless};
  CHECK(choose_codec(journey, all) == 1);  // at 1 Gbit/s the better ratio
  journey.link_bytes_per_s = 1.25e9;
  CHECK(choose_codec(journey, all) == 0);  // at 10 Gbit/s the faster codec
  journey.link_bytes_per_s = 10e9;
  CHECK(choose_codec(journey, all) == -1);  // at 80 Gbit/s none
  journey.link_bytes_per_s = 125e6;
  CHECK(choose_codec(journey, std::span(&useless, 1)) == -1);
  CHECK(choose_codec(journey, {}) == -1);
  journey.encoded_slowdown = 3;  // it was three times as slow as predicted: not again
  CHECK(choose_codec(journey, all) == -1);
  journey.plain_slowdown = 3;
  CHECK(choose_codec(journey, all) == 1);
  for (double bytes : {1e3, 1e6, 1e9})
    for (double link : {1e8, 1e9, 1e10}) {
      const Journey j{bytes, 256 << 10, 3, link, 50e-6};
      const int best = choose_codec(j, all);
      if (best >= 0) CHECK(encoded_seconds(j, all[best]) < plain_seconds(j));
    }
}

void experience() {
  Experience seen;
  CHECK(seen.slowdown(true) == 1 && seen.slowdown(false) == 1);
  for (int i = 0; i < 10; ++i) seen.note(true, 0.1, 0.4);
  CHECK(std::abs(seen.slowdown(true) - 4) < 0.02 && seen.slowdown(false) == 1);
  for (int i = 0; i < 500; ++i) seen.note(false, 0.1, 0.1);
  CHECK(seen.slowdown(true) < 1.1);  // forgotten: worth another try
  seen.note(true, 0, 1);
  CHECK(seen.slowdown(true) < 5);
}

void checksums() {
  const std::string text = "123456789";
  CHECK(crc32c(std::as_bytes(std::span(text))) == 0xe3069283);  // the published check value of CRC-32C
  std::vector<std::byte> data(100'001);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  for (std::size_t size : {0, 1, 7, 8, 4095, 12288, 12289, 36864, 100'001}) {
    const ConstBytes part(data.data(), size);
    CHECK(crc32c(part) == detail::crc32c_table(part, 0));
    CHECK(crc32c(part.subspan(size / 3), crc32c(part.first(size / 3))) == crc32c(part));
  }
}

void spreads() {
  const float values[] = {1, 2, 3, 4, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
  const double expected = std::sqrt(1.25);
  CHECK(std::abs(standard_deviation(Datatype::kF32, std::as_bytes(std::span(values))) - expected) < 1e-6);
  const double far[] = {1e9 + 1, 1e9 + 2, 1e9 + 3, 1e9 + 4};
  CHECK(std::abs(standard_deviation(Datatype::kF64, std::as_bytes(std::span(far))) - expected) < 1e-6);
  const std::uint16_t halves[] = {0x3c00, 0x4000, 0x4200, 0x4400, 0x7c00};  // 1 2 3 4 inf
  CHECK(std::abs(standard_deviation(Datatype::kF16, std::as_bytes(std::span(halves))) - expected) < 1e-6);
  const std::uint16_t brains[] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x7fc0};  // 1 2 3 4 nan
  CHECK(std::abs(standard_deviation(Datatype::kBF16, std::as_bytes(std::span(brains))) - expected) < 1e-6);
  CHECK(standard_deviation(Datatype::kF32, {}) == 0 && standard_deviation(Datatype::kI32, {}) == 0);
  const float same[] = {5, 5, 5};
  CHECK(standard_deviation(Datatype::kF32, std::as_bytes(std::span(same))) == 0);
}

int main() {
  schedules();
  costs();
  plans();
  policy();
  experience();
  checksums();
  spreads();
}
