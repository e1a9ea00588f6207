// What a rank refuses to decode, though the message is in order.
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/settings.hpp"
#include "check.hpp"
#include "codec/frame.hpp"

using namespace accdp;

namespace {

constexpr std::uint32_t kRaw = 4096;
constexpr ChunkExpectation kExact{kRaw}, kLossy{kRaw, true, false}, kDifference{kRaw, false, true};

FrameExpectation expectation(const ChunkExpectation& chunk) { return {1, 7, kRaw, 5, 0, kRaw, std::span(&chunk, 1)}; }

ConstBytes zeros_as(const CodecRow& codec, std::vector<std::byte>& room, std::uint8_t flags = 0) {
  const std::vector<std::byte> raw(kRaw);
  room.resize(frame_room(kRaw, 1));
  FrameWriter writer(room, 1);
  CHECK(writer.add(&codec, {Datatype::kF32, 1e-3}, raw, flags));
  FrameHead head;
  head.collective = 1;
  head.sequence = 7;
  head.stream_bytes = head.chunk_bytes = kRaw;
  head.reference = 5;
  return writer.finish(head);
}

/// Other tensors of the stream may have a reference or a bound: what this one has counts.
void what_the_tensor_does_not_allow() {
  std::vector<std::byte> room;
  const ConstBytes lossy = zeros_as(codec_named("qpk"), room);
  CHECK(FrameReader(lossy, expectation(kLossy)).chunks() == 1);
  for (const ChunkExpectation& chunk : {kExact, kDifference})
    CHECK_THROWS(FrameReader(lossy, expectation(chunk)), CodecError, "its tensor must arrive as it is");
  const ConstBytes difference = zeros_as(codec_named("fpk"), room, ChunkRecord::kDelta);
  CHECK(FrameReader(difference, expectation(kDifference)).chunks() == 1);
  for (const ChunkExpectation& chunk : {kExact, kLossy})
    CHECK_THROWS(FrameReader(difference, expectation(chunk)), CodecError, "its tensor has no reference");
}

/// Frames of other builds must be read: head, record and chunk, byte for byte.
void the_format_of_frames() {
  constexpr const char* kStored =
      "414344500101000007000000000000000010000000000000050000000000000000000000000000000100000000100000"
      "5800000000000000000000003075d17c08000000001000008ab2288c010100000000000000000000";
  std::vector<std::byte> room;
  std::string hex;
  for (std::byte byte : zeros_as(codec_named("fpk"), room)) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(byte));
    hex += digits;
  }
  CHECK(hex == kStored);
}

/// A call that names a codec gets chunks of that one, or such that went as they are.
void a_codec_that_was_not_asked_for() {
  std::vector<std::byte> room;
  const ConstBytes message = zeros_as(codec_named("fpk"), room);
  FrameExpectation expected = expectation(kExact);
  expected.codecs = bit_of(CodecId::kFpk);
  CHECK(FrameReader(message, expected).chunks() == 1);
  expected.codecs = bit_of(CodecId::kZstd);
  CHECK_THROWS(FrameReader(message, expected), CodecError, "a chunk of codec fpk, which the call did not ask for");
}

void a_codec_that_is_switched_off() {
  std::vector<std::byte> room;
  const ConstBytes message = zeros_as(codec_named("fpk"), room);
  CHECK(FrameReader(message, expectation(kExact)).chunks() == 1);
  set_setting("ACCDP_CODECS_OFF", "lz4");
  CHECK(FrameReader(message, expectation(kExact)).chunks() == 1);
  set_setting("ACCDP_CODECS_OFF", "fpk,lz4");
  CHECK_THROWS(FrameReader(message, expectation(kExact)), CodecError, "switched off by ACCDP_CODECS_OFF=fpk,lz4");
}

}  // namespace

int main() {
  the_format_of_frames();
  what_the_tensor_does_not_allow();
  a_codec_that_was_not_asked_for();
  a_codec_that_is_switched_off();
}
