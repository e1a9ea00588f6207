// How a stream is cut and which way it goes: thousands of shapes, no ranks.
#include <chrono>
#include <cmath>
#include <map>
#include <set>

#include "base/error.hpp"
#include "check.hpp"
#include "codec/crc32c.hpp"
#include "codec/policy.hpp"
#include "codec/speeds.hpp"
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
      // Nothing, of the kind of the next, between two kinds.
      {{4000, Datatype::kF32}, {0, Datatype::kI64}, {800, Datatype::kI64}, {0, Datatype::kF32}, {4, Datatype::kF32}},
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
  Journey journey{64 << 20, 256 << 10, 3, 125e6, 50e-6, 0.2e-9};
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
  for (double bytes : {1e3, 1e6, 1e9})
    for (double link : {1e8, 1e9, 1e10}) {
      const Journey j{bytes, 256 << 10, 3, link, 50e-6};
      const int best = choose_codec(j, all);
      if (best >= 0) CHECK(encoded_seconds(j, all[best]) < plain_seconds(j));
    }
  // On a chain the first chunk goes over every link, and nodes within receive and send.
  const Journey one{1e8, 1e6, 1, 1e8, 50e-6, 0}, three{1e8, 1e6, 3, 1e8, 50e-6, 0};
  CHECK(std::abs(plain_seconds(three) - plain_seconds(one) - 2 * (1e6 / 1e8 + 50e-6)) < 1e-9);
  const Journey to_last{1e8, 1e6, 1, 1e15, 0, 1e-9}, within{1e8, 1e6, 2, 1e15, 0, 1e-9};
  CHECK(std::abs(plain_seconds(within) / plain_seconds(to_last) - 2) < 1e-6);
}

/// Encoders, decoders and sockets of hosts that share cores: measured on 4 hosts on 2 cores at 10 Gbit/s.
void shared_cores() {
  const CodecCost fpk{1.17, 2.7e9, 4.7e9}, qpk{4.1, 4e9, 6e9};
  Journey journey{64 << 20, 256 << 10, 3, 1.19e9, 100e-6, 0.2e-9};
  CHECK(choose_codec(journey, std::span(&fpk, 1)) == 0);  // with a core each
  journey.cores = 0.5;
  const double plain = plain_seconds(journey);
  CHECK(choose_codec(journey, std::span(&fpk, 1)) == -1 && encoded_seconds(journey, fpk) > 1.1 * plain);
  CHECK(choose_codec(journey, std::span(&qpk, 1)) == 0);  // so much less to send that it pays all the same
  // At 1 Gbit/s the cores have time enough.
  journey.link_bytes_per_s = 0.12e9;
  CHECK(choose_codec(journey, std::span(&fpk, 1)) == 0);
  // On two hosts with a core each it is the root's thread that encodes and sends: 0.8 ns for a byte to send.
  journey = {64 << 20, 256 << 10, 1, 1.19e9, 100e-6, 0.8e-9};
  CHECK(choose_codec(journey, std::span(&fpk, 1)) == -1);
  CHECK(std::abs(encoded_seconds(journey, fpk) / 0.0869 - 1) < 0.15);  // what 64 MiB took
  journey.message_s_per_byte = 0.05e-9;                                // a network card that does it all
  CHECK(choose_codec(journey, std::span(&fpk, 1)) == 0);
}

/// The two error-bounded codecs of our own, with the speeds and ratios that they have on float32 gradients at 0.01: the
/// one that sends less on slow links, the one that computes less on fast ones.
void bounded_codecs() {
  const CodecCost rows[] = {{3.7, 5e9, 9e9}, {4.7, 1.8e9, 3e9}};
  Journey broadcast{64 << 20, 256 << 10, 3, 0.12e9, 100e-6, 0.4e-9};
  CHECK(choose_codec(broadcast, rows) == 1);
  broadcast.link_bytes_per_s = 1.2e9;
  CHECK(choose_codec(broadcast, rows) == 0);

  Journey message{64 << 20, 256 << 10, 1, 0.12e9, 100e-6, 0.4e-9};
  CHECK(choose_codec(allreduce_journey(message, 4, 1), rows) == 1);
  CHECK(choose_codec(allreduce_journey(message, 2, 1), rows) == 1);
  message.link_bytes_per_s = 1.2e9;
  CHECK(choose_codec(allreduce_journey(message, 4, 1), rows) == 0);
  message.link_bytes_per_s = 40e9;
  message.message_s_per_byte = 0.02e-9;
  CHECK(choose_codec(allreduce_journey(message, 4, 1), rows) == -1);
}

/// What a thread does in an allreduce: 64 MiB over 4 nodes are 96 MiB out of each, 64 MiB encoded, 96 MiB decoded.
void allreduces() {
  const Journey message{64 << 20, 256 << 10, 1, 0.1e9, 0, 0, 2};
  const Journey one = allreduce_journey(message, 4, 1), two = allreduce_journey(message, 4, 2);
  CHECK(one.bytes == 96 << 20 && std::abs(one.bytes * one.own_encodes - (64 << 20)) < 1);
  CHECK(one.own_decodes == 1 && one.cores == 2 && one.link_bytes_per_s == 0.1e9);
  CHECK(two.bytes == 48 << 20 && two.cores == 1 && two.link_bytes_per_s == 0.05e9);
  CHECK(std::abs(plain_seconds(one) - one.bytes / 0.1e9) < 1e-9 && plain_seconds(two) == plain_seconds(one));
  // A codec that keeps up with the link as long as its thread does nothing else.
  const CodecCost codec{2, 0.25e9, 0.25e9};
  CHECK(encoded_seconds({one.bytes, one.chunk_bytes, 1, 0.1e9, 0, 0}, codec) < 0.6 * plain_seconds(one));
  CHECK(encoded_seconds(one, codec) > 0.65 * plain_seconds(one));
  Journey half_a_core = one;
  half_a_core.cores = 0.5;
  CHECK(encoded_seconds(half_a_core, codec) > 1.3 * plain_seconds(one));
  // What a thread copies and adds up takes time from a codec that is slow.
  const CodecCost rows[] = {{4.2, 1.6e9, 1.6e9}, {3.7, 6e9, 6e9}};
  Journey busy = allreduce_journey({64 << 20, 256 << 10, 1, 0.118e9, 100e-6, 0.4e-9, 1}, 2, 2);
  CHECK(choose_codec(busy, rows) == 0);
  busy.own_work_s_per_byte = 0.73e-9;
  CHECK(choose_codec(busy, rows) == 1);
}

/// Codecs whose calls cost something are no good for little data; of equals the one that computes least is taken; the
/// differences to a reference take time as well.
void finer_points() {
  Journey journey{64 << 10, 256 << 10, 1, 125e6, 100e-6};
  CodecCost codec{1.5, 1e9, 2e9};
  CHECK(choose_codec(journey, std::span(&codec, 1)) == 0);
  codec.encode_call_s = codec.decode_call_s = 100e-6;
  CHECK(choose_codec(journey, std::span(&codec, 1)) == -1);
  journey.bytes = 64 << 20;  // in large chunks that does not matter
  CHECK(choose_codec(journey, std::span(&codec, 1)) == 0);
  // What gains less than predictions are off is not worth the work.
  const CodecCost hardly{1.01, 20e9, 20e9}, more{1.05, 20e9, 20e9};
  CHECK(choose_codec(journey, std::span(&hardly, 1)) == -1 && choose_codec(journey, std::span(&more, 1)) == 0);
  const CodecCost equal[] = {{10, 1e9, 2e9}, {10, 3e9, 4e9}, {9.9, 3.1e9, 5e9}};
  CHECK(choose_codec(journey, equal) == 2);  // the link sets the pace for all three
  journey = {64 << 20, 256 << 10, 1, 125e6, 100e-6};
  const CodecCost delta{20, 1e9, 1e9};
  const double fast = encoded_seconds(journey, delta);
  journey.transform_s_per_byte = 1e-9;
  CHECK(encoded_seconds(journey, delta) > 1.5 * fast);
}

/// A device works beside the thread that sends; what a call costs it, it pays once for a run of chunks.
void devices() {
  Journey journey{64 << 20, 256 << 10, 1, 1.19e9, 100e-6, 0.4e-9};
  const CodecCost host{1.17, 1.5e9, 3e9, 100e-6, 100e-6};
  CodecCost device = host;
  device.encode_run_bytes = device.decode_run_bytes = 4 << 20;
  CHECK(choose_codec(journey, std::span(&host, 1)) == -1 && choose_codec(journey, std::span(&device, 1)) == 0);
  device.decode_run_bytes = 0;  // receivers that decode in their hosts
  CHECK(choose_codec(journey, std::span(&device, 1)) == -1);
  device.decode_run_bytes = 4 << 20;
  device.encode_call_s = 1e-3;
  CHECK(choose_codec(journey, std::span(&device, 1)) == -1);
  // It has cores of its own: what hosts that share a machine's cannot do.
  const CodecCost fast{4, 4e9, 6e9};
  CodecCost beside = fast;
  beside.encode_run_bytes = beside.decode_run_bytes = 4 << 20;
  journey.message_s_per_byte = 0.05e-9;
  journey.cores = 0.25;
  CHECK(encoded_seconds(journey, beside) < 0.5 * encoded_seconds(journey, fast));
  // Every sum of an allreduce is a run by itself.
  const Journey sum = allreduce_journey({64 << 20, 256 << 10, 1, 1.19e9, 100e-6, 0.05e-9}, 2, 1);
  CodecCost called = beside;
  called.encode_call_s = 200e-6;
  CHECK(encoded_seconds(journey, called) < 1.3 * encoded_seconds(journey, beside));
  CHECK(encoded_seconds(sum, called) > 2 * encoded_seconds(sum, beside));
}

/// Token ids as int64, measured on 64 MiB: zhuff is faster than lz4, with the smaller ratio, because both encode slower
/// than they send.
void token_ids() {
  const Journey journey{64 << 20, 256 << 10, 1, 0.12e9, 100e-6, 0.8e-9};
  const CodecCost rows[] = {{17.3, 1.28e9, 3.2e9}, {14.5, 1.85e9, 2.6e9}, {25.9, 1.0e9, 2.1e9}};
  CHECK(choose_codec(journey, rows) == 1);
}

void sampling() {
  // 64 KiB at 1 Gbit/s take about 0.6 ms: time to look at 4 KiB with the fastest codecs.
  const CodecCost fast{1, 4e9, 6e9, 1e-6, 0}, slow{1, 0.4e9, 1e9, 15e-6, 4e-6};
  SamplingBudget budget(0.6e-3);
  CHECK(budget.allows(sampling_seconds(fast, 4 << 10)) && !budget.allows(sampling_seconds(slow, 4 << 10)));
  // 64 MiB: time for all.
  budget = SamplingBudget(0.5);
  CHECK(budget.allows(sampling_seconds(fast, 1 << 20) + sampling_seconds(slow, 1 << 20)));
  // Unless one of them makes the rest short: then no search for a better one may take longer than that could gain.
  budget.found(8e-3);
  budget.spend(0.1e-3);
  CHECK(!budget.allows(sampling_seconds(slow, 1 << 20)) && budget.allows(sampling_seconds(slow, 16 << 10)));
  budget.found(1);
  CHECK(budget.is_hopeless(13e-3, 256 << 10) && !budget.is_hopeless(11e-3, 256 << 10));
  // A codec on 4 KiB may be far from its stride: token ids at 10 Gbit/s, for which zhuff is predicted to take 74 ms by
  // such samples, by longer ones 30 ms, as it does. Sent as they are they take 48 ms.
  budget = SamplingBudget(48e-3);
  CHECK(!budget.is_hopeless(74e-3, 4 << 10) && budget.is_hopeless(74e-3, 256 << 10));
  CHECK(budget.is_hopeless(200e-3, 4 << 10));
  // Whatever is tried, the time for it is a small part of the best way's.
  for (double plain_s = 1e-5; plain_s < 10; plain_s *= 3) {
    budget = SamplingBudget(plain_s);
    double spent = 0, best = plain_s;
    for (double bytes = 4 << 10; bytes <= 1 << 20; bytes *= 2)
      for (const CodecCost& codec : {fast, slow}) {
        const double seconds = sampling_seconds(codec, bytes);
        if (!budget.allows(seconds)) continue;
        budget.spend(seconds);
        budget.found(best = std::min(best, plain_s / (1 + bytes / 1e5)));
        spent += seconds;
        CHECK(spent <= SamplingBudget::kShare * plain_s);
      }
  }
}

/// Where another size takes another way, a time in between lies between those that were measured.
void times_of_codecs() {
  const CodecTimes times{{1e-6, 10e-6, 40e-6, 240e-6}, {2e-6, 5e-6, 20e-6, 80e-6}};
  for (std::size_t i = 0; i < CodecTimes::kSizes; ++i) {
    CHECK(std::abs(times.encode_s(CodecTimes::bytes_at(i)) / times.encode[i] - 1) < 1e-9);
    CHECK(std::abs(times.decode_s(CodecTimes::bytes_at(i)) / times.decode[i] - 1) < 1e-9);
  }
  CHECK(std::abs(times.encode_s(40 << 10) - 25e-6) < 1e-12);
  CHECK(std::abs(times.encode_s(1 << 20) - 1040e-6) < 1e-9);
  CHECK(times.encode_s(1) > 0);
}

/// A stream of frames over a link of a speed; the receipt for each comes when the link has carried it.
LinkMeter::Time play_stream(LinkMeter& meter, LinkMeter::Stream kind, LinkMeter::Time now, int frames,
                            std::size_t bytes, double bytes_per_s) {
  meter.begin(kind);
  for (int i = 0; i < frames; ++i) meter.sent(bytes, now);
  for (int i = 1; i <= frames; ++i) {
    now += std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * static_cast<double>(bytes) / bytes_per_s));
    meter.received(i * bytes, now);
  }
  meter.end(now);
  return now;
}

void links() {
  using Stream = LinkMeter::Stream;
  LinkMeter meter;
  LinkMeter::Time now{};
  auto is = [&](double speed) { return std::abs(meter.bytes_per_s() / speed - 1) < 0.05; };
  CHECK(!meter.is_known() && is(1.25e9) && meter.wants_receipts(64, 16 << 20) && meter.wants_receipts(4, 1 << 20));
  CHECK(!meter.wants_receipts(1, 4096));
  // Four frames of 256 KiB are enough, so that a program that never sends more than 1 MiB gets to know its link.
  now = play_stream(meter, Stream::kDirect, now, 4, 256 << 10, 125e6);
  CHECK(meter.is_known() && is(125e6) && !meter.wants_receipts(4, 1 << 20) && meter.wants_receipts(8, 2 << 20));
  now = play_stream(meter, Stream::kDirect, now, 256, 256 << 10, 1e9);
  CHECK(is(1e9));
  // An encoded stream that is slow says that the decoder is: nothing is learned.
  now = play_stream(meter, Stream::kEncoded, now, 256, 256 << 10, 0.3e9);
  CHECK(is(1e9));
  now = play_stream(meter, Stream::kEncoded, now, 256, 256 << 10, 2e9);
  CHECK(is(2e9));
  now = play_stream(meter, Stream::kDirect, now, 256, 256 << 10, 125e6);
  CHECK(is(125e6));
  // This rank had no core for 40 ms in which 20 receipts came, which it then reads at once.
  meter.begin(Stream::kDirect);
  meter.sent(16 << 20, now);
  for (int i = 1; i <= 64; ++i) {
    const bool is_together = i > 5 && i <= 25;
    now += std::chrono::microseconds(i == 5 ? 21 * 2097 : is_together ? 0 : 2097);  // 256 KiB at 125 MB/s
    meter.received(i * (256 << 10), now);
    CHECK(meter.bytes_per_s() < 1.6 * 125e6);
  }
  meter.end(now);
  CHECK(is(125e6));
  // Small messages only: a guess, asked for a few times.
  meter = LinkMeter();
  int asked = 0;
  for (; meter.wants_receipts(1, 128 << 10) && asked < 100; ++asked)
    now = play_stream(meter, Stream::kDirect, now, 1, 128 << 10, 125e6);
  CHECK(asked == 8 && meter.is_known() && meter.bytes_per_s() > 115e6 && meter.bytes_per_s() < 150e6);
  // Latency: the median of what is seen, within limits.
  for (int i = 0; i < 300; ++i) meter.note_exchange(i % 3 ? 120e-6 : 10);
  CHECK(meter.latency_s() > 90e-6 && meter.latency_s() < 160e-6);
  for (int i = 0; i < 300; ++i) meter.note_exchange(1);
  CHECK(meter.latency_s() <= 300e-6);
  for (int i = 0; i < 300; ++i) meter.note_exchange(0);
  CHECK(meter.latency_s() >= 10e-6);

  MessageCost cost;
  CHECK(cost.seconds_per_byte() == 0.4e-9);
  cost.note(1, 1, 4096, 1);  // too little to tell
  CHECK(cost.seconds_per_byte() == 0.4e-9);
  // A thread that waits for a slow link spends time on looking: that is not what a byte costs.
  cost.note(0.09, 0.56, 64 << 20, 1);
  CHECK(cost.seconds_per_byte() == 0.4e-9);
  cost.note(0.02, 0.56, 64 << 20, 1);
  CHECK(std::abs(cost.seconds_per_byte() - 0.02 / (64 << 20)) < 1e-12);
  cost.note(0.05, 0.11, 64 << 20, 0.5);  // busy, on half a core
  CHECK(std::abs(cost.seconds_per_byte() - 0.05 / (64 << 20)) < 1e-12);
  cost.note(100, 100, 64 << 20, 1);
  CHECK(cost.seconds_per_byte() < 2e-9);
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

int main() {
  schedules();
  plans();
  policy();
  shared_cores();
  bounded_codecs();
  allreduces();
  finer_points();
  devices();
  token_ids();
  times_of_codecs();
  sampling();
  links();
  checksums();
}
