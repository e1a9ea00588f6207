// What of a frame disagrees with what its receiver waits for is named, field by field, though the checksums fit.
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "codec/frame.hpp"
#include "frame_sums.hpp"

using namespace accdp;

namespace {

using Message = std::vector<std::byte>;

// The first chunk goes as it is, and ends where no other may begin; the second one is encoded.
constexpr std::uint32_t kPlain = 1000, kEncoded = 4096;
constexpr std::size_t kChunks = 2, kFirst = sizeof(FrameHead) + kChunks * sizeof(ChunkRecord);
constexpr ChunkExpectation kExact[] = {{kPlain}, {kEncoded}};

FrameExpectation expectation(std::span<const ChunkExpectation> chunks = kExact) {
  return {3, 7, 20'000, 5, 11, kEncoded, chunks, bit_of(CodecId::kFpk)};
}

Message good_message() {
  std::vector<std::byte> room(frame_room(kPlain + kEncoded, kChunks)), noise(kPlain), zeros(kEncoded);
  std::mt19937 random(1);
  for (std::byte& value : noise) value = static_cast<std::byte>(random());
  FrameWriter writer(room, kChunks);
  const CodecRow& fpk = codec_named("fpk");
  CHECK(!writer.add(nullptr, {Datatype::kF32}, noise));
  CHECK(writer.add(&fpk, {Datatype::kF32}, zeros));
  FrameHead head;
  head.collective = 3;
  head.sequence = 7;
  head.stream_bytes = 20'000;
  head.reference = 5;
  head.first_chunk = 11;
  head.chunk_bytes = kEncoded;
  const ConstBytes message = writer.finish(head);
  return {message.begin(), message.end()};
}

/// What the receiver says; "" where it takes the message. A copy of its own shows the sanitizer one byte too many.
std::string refusal(const Message& message, const FrameExpectation& expected = expectation()) {
  const Message exact(message.begin(), message.end());
  try {
    FrameReader(exact, expected);
  } catch (const CodecError& error) {
    return error.what();
  }
  return "";
}

void check_refused(const Message& message, const std::string& wanted) {
  const std::string said = refusal(message);
  if (said.find(wanted) == std::string::npos)
    std::fprintf(stderr, "expected \"%s\", got \"%s\"\n", wanted.c_str(), said.c_str());
  CHECK(said.find(wanted) != std::string::npos);
}

struct Parts {
  FrameHead head;
  ChunkRecord plain, encoded;
};
static_assert(sizeof(Parts) == kFirst);

/// A message whose head and records were changed. It is `bytes` long, and says so, where that is not 0.
struct Fault {
  std::string said;
  std::function<void(Parts&)> change;
  std::size_t bytes = 0;
};

Message with_fault(const Fault& fault) {
  Message message = good_message();
  Parts parts;
  std::memcpy(&parts, message.data(), sizeof parts);
  if (fault.bytes) parts.head.frame_bytes = fault.bytes;
  if (fault.change) fault.change(parts);
  std::memcpy(message.data(), &parts, sizeof parts);
  if (fault.bytes) message.resize(fault.bytes);
  if (message.size() >= kFirst) repair_sums(message, kChunks);
  return message;
}

std::string other(const char* field, std::uint64_t got, std::uint64_t expected) {
  return std::string("a frame with ") + field + " " + std::to_string(got) + ", expected " + std::to_string(expected);
}

void every_field() {
  const Message good = good_message();
  CHECK(refusal(good).empty());
  const std::size_t all = good.size();
  const std::uint32_t stored = record_of(good, 1).stored;
  const std::uint8_t format = codec_named("fpk").format;
  const std::string no_room = "bytes, more than there is room for";
  const auto chunk_of = [&](std::size_t bytes) { return "a chunk of " + std::to_string(bytes) + " " + no_room; };
  const std::uint64_t high = std::uint64_t{1} << 32;  // what a comparison of the lower half would not see
  const Fault faults[] = {
      {other("magic number", 1, FrameHead::kMagic), [](Parts& p) { p.head.magic = 1; }},
      {other("format version", 2, 1), [](Parts& p) { p.head.version = 2; }},
      {other("collective", 4, 3), [](Parts& p) { p.head.collective = 4; }},
      {other("sequence number", 8, 7), [](Parts& p) { p.head.sequence = 8; }},
      {other("sequence number", 7 + high, 7), [&](Parts& p) { p.head.sequence += high; }},
      {other("stream bytes", 19'999, 20'000), [](Parts& p) { --p.head.stream_bytes; }},
      {other("stream bytes", 20'000 + high, 20'000), [&](Parts& p) { p.head.stream_bytes += high; }},
      {other("reference checksum", 0, 5), [](Parts& p) { p.head.reference = 0; }},
      {other("first chunk", 12, 11), [](Parts& p) { p.head.first_chunk = 12; }},
      {other("chunks", 3, 2), [](Parts& p) { p.head.chunks = 3; }},
      {other("chunk bytes", 4112, 4096), [](Parts& p) { p.head.chunk_bytes = 4112; }},
      {other("frame bytes", all + 1, all), [](Parts& p) { ++p.head.frame_bytes; }},

      {other("chunk size", 992, kPlain), [](Parts& p) { p.plain.raw = p.plain.stored = 992; }},
      {other("chunk size", 4100, kEncoded), [](Parts& p) { p.encoded.raw = 4100; }},
      {other("stored bytes of a plain chunk", 992, kPlain), [](Parts& p) { p.plain.stored = 992; }},
      {chunk_of(kPlain + 1), [](Parts& p) { p.plain.stored = kPlain + 1; }},
      {chunk_of(~0U), [](Parts& p) { p.encoded.stored = ~0U; }},
      {chunk_of(stored + 1), [](Parts& p) { ++p.encoded.stored; }},
      {other("end", all - 1, all), [](Parts& p) { --p.encoded.stored; }},
      {"a chunk with flags 1,", [](Parts& p) { p.plain.flags = ChunkRecord::kDelta; }},
      {"a chunk with flags 2,", [](Parts& p) { p.encoded.flags = 2; }},
      {"a chunk of unknown codec 200", [](Parts& p) { p.encoded.codec = CodecId{200}; }},
      {"a chunk of codec ans, which the call", [](Parts& p) { p.plain.codec = CodecId::kAns; }},
      {"a chunk of codec zstd, which the call", [](Parts& p) { p.encoded.codec = CodecId::kZstd; }},
      {other("codec format", format + 1, format), [](Parts& p) { ++p.encoded.format; }},
      {other("library version", 1, 0), [](Parts& p) { p.encoded.library_major = 1; }},

      {"a frame of 0 bytes, which is no head", nullptr, 0},
      {"a frame of 63 bytes, which is no head", nullptr, sizeof(FrameHead) - 1},
      {"a frame that ends before its records do", nullptr, sizeof(FrameHead)},
      {"a frame that ends before its records do", nullptr, kFirst - 1},
      {chunk_of(kPlain), nullptr, kFirst},
      {chunk_of(kPlain), nullptr, kFirst + kPlain - 1},
      {chunk_of(stored), nullptr, kFirst + kPlain},  // before the place where the second chunk may begin
      {chunk_of(stored), nullptr, all - 1},
      {other("end", all, all + 16), nullptr, all + 16},
  };
  for (const Fault& fault : faults) {
    const bool is_empty = !fault.change && fault.bytes == 0;
    check_refused(is_empty ? Message() : with_fault(fault), fault.said);
  }
}

/// Chunks that say of themselves what their tensors allow, and what they do not.
void what_tensors_allow() {
  constexpr ChunkExpectation kDifference[] = {{kPlain, false, true}, {kEncoded, false, true}};
  const auto flagged = [](int flags) {
    return with_fault({"", [=](Parts& p) { p.plain.flags = p.encoded.flags = static_cast<std::uint8_t>(flags); }});
  };
  CHECK(refusal(flagged(ChunkRecord::kDelta), expectation(kDifference)).empty());
  for (int flags : {2, 3, 128, 129})
    CHECK(refusal(flagged(flags), expectation(kDifference)).find("a chunk with flags") == 0);
}

/// Sums that were not made to fit: any bit that is not between chunks counts.
void every_bit() {
  const Message good = good_message();
  const std::size_t gap = kFirst + kPlain, second = (gap + 15) / 16 * 16;
  for (std::size_t at = 0; at < good.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      Message message = good;
      message[at] ^= static_cast<std::byte>(1 << bit);
      CHECK(refusal(message).empty() == (at >= gap && at < second));
    }
  const auto flipped = [&](std::size_t at) {
    Message message = good;
    message[at] ^= std::byte{1};
    return message;
  };
  check_refused(flipped(offsetof(FrameHead, crc)), "a frame with head checksum ");
  check_refused(flipped(offsetof(FrameHead, spare)), "a frame with head checksum ");
  check_refused(flipped(sizeof(FrameHead) + offsetof(ChunkRecord, crc)), "a frame with head checksum ");
  check_refused(flipped(kFirst), "a frame with chunk checksum ");
  check_refused(flipped(good.size() - 1), "a frame with chunk checksum ");
}

/// What only shows when a chunk is decoded.
void decoding() {
  const Message message = good_message();
  const FrameReader reader(message, expectation());
  std::vector<std::byte> room(kEncoded + 4);
  for (std::size_t bytes : {std::size_t{kPlain} - 1, std::size_t{kPlain} + 1})
    CHECK_THROWS(reader.decode(0, Datatype::kF32, Bytes(room).first(bytes)), CodecError,
                 other("room for a chunk", bytes, kPlain));
  CHECK_THROWS(reader.decode(1, Datatype::kF32, room), CodecError, other("room for a chunk", kEncoded + 4, kEncoded));

  const Message lossy = with_fault({"", [](Parts& p) {
                                      p.encoded.codec = CodecId::kQpk;
                                      p.encoded.format = codec_named("qpk").format;
                                    }});
  constexpr ChunkExpectation kLossy[] = {{kPlain}, {kEncoded, true, false}};
  FrameExpectation expected = expectation(kLossy);
  expected.codecs |= bit_of(CodecId::kQpk);
  const FrameReader of_floats(lossy, expected);
  CHECK_THROWS(of_floats.decode(1, Datatype::kI64, Bytes(room).first(kEncoded)), CodecError,
               "a chunk of codec qpk, which has no int64");
}

}  // namespace

int main() {
  every_field();
  what_tensors_allow();
  every_bit();
  decoding();
}
