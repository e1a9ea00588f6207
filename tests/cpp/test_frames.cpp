// What a rank refuses to decode, though the message is in order.
#include "base/error.hpp"
#include "base/settings.hpp"
#include "check.hpp"
#include "codec/frame.hpp"

using namespace accdp;

namespace {

constexpr std::uint32_t kRaw = 4096;
constexpr FrameExpectation kExpected{1, 7, kRaw, 0, 0, kRaw, false, std::span(&kRaw, 1)};

ConstBytes zeros_as(const CodecRow& codec, std::vector<std::byte>& room) {
  const std::vector<std::byte> raw(kRaw);
  room.resize(frame_room(kRaw, 1));
  FrameWriter writer(room, 1);
  CHECK(writer.add(&codec, {Datatype::kF32}, raw));
  FrameHead head;
  head.collective = 1;
  head.sequence = 7;
  head.stream_bytes = head.chunk_bytes = kRaw;
  return writer.finish(head);
}

void a_codec_that_is_switched_off() {
  std::vector<std::byte> room;
  const ConstBytes message = zeros_as(codec_named("fpk"), room);
  CHECK(FrameReader(message, kExpected).chunks() == 1);
  set_setting("ACCDP_CODECS_OFF", "lz4");
  CHECK(FrameReader(message, kExpected).chunks() == 1);
  set_setting("ACCDP_CODECS_OFF", "fpk,lz4");
  CHECK_THROWS(FrameReader(message, kExpected), CodecError, "switched off by ACCDP_CODECS_OFF=fpk,lz4");
}

}  // namespace

int main() { a_codec_that_is_switched_off(); }
