#include "codec/frame.hpp"

#include <cstddef>
#include <cstring>

#include "base/error.hpp"
#include "base/rounding.hpp"
#include "codec/crc32c.hpp"

namespace accdp {
namespace {

constexpr std::size_t kAlign = 16;

std::size_t aligned(std::size_t bytes) { return round_up(bytes, kAlign); }

std::uint32_t crc_of_head(ConstBytes frame, std::size_t chunks) {
  const std::uint32_t head = crc32c(frame.first(offsetof(FrameHead, crc)));
  return crc32c(frame.subspan(sizeof(FrameHead), chunks * sizeof(ChunkRecord)), head);
}

/// Every disagreement ends here, with the field, what was expected and what came.
void require(const char* field, std::uint64_t expected, std::uint64_t got) {
  if (expected != got)
    throw CodecError(std::string("a frame with ") + field + " " + std::to_string(got) + ", expected " +
                     std::to_string(expected));
}

}  // namespace

std::size_t frame_room(std::size_t raw_bytes, std::size_t chunks) noexcept {
  return sizeof(FrameHead) + chunks * (sizeof(ChunkRecord) + kAlign) + raw_bytes;
}

FrameWriter::FrameWriter(Bytes room, std::size_t chunks)
    : room_(room), chunks_(chunks), used_(sizeof(FrameHead) + chunks * sizeof(ChunkRecord)) {}

bool FrameWriter::add(const CodecRow* codec, const Encoding& how, ConstBytes raw, std::uint8_t flags) {
  const Bytes out = room_.subspan(used_, raw.size());
  ChunkRecord record;
  record.raw = static_cast<std::uint32_t>(raw.size());
  record.flags = flags;
  if (codec && codec->takes(how.type))
    if (const std::size_t stored = codec->encode(how, raw, out)) {
      record.stored = static_cast<std::uint32_t>(stored);
      record.codec = codec->id;
      record.format = codec->format;
      record.library_major = codec->library_major();
    }
  if (record.codec == CodecId::kNone) {
    record.stored = record.raw;
    if (!raw.empty()) std::memcpy(out.data(), raw.data(), raw.size());
  }
  put(record);
  return record.codec != CodecId::kNone;
}

void FrameWriter::add_encoded(const CodecRow& codec, std::size_t raw_bytes, ConstBytes stored, std::uint8_t flags) {
  ChunkRecord record;
  record.raw = static_cast<std::uint32_t>(raw_bytes);
  record.stored = static_cast<std::uint32_t>(stored.size());
  record.codec = codec.id;
  record.format = codec.format;
  record.library_major = codec.library_major();
  record.flags = flags;
  std::memcpy(room_.data() + used_, stored.data(), stored.size());
  put(record);
}

void FrameWriter::put(ChunkRecord record) {
  record.crc = crc32c(room_.subspan(used_, record.stored));
  std::memcpy(room_.data() + sizeof(FrameHead) + added_ * sizeof record, &record, sizeof record);
  ++added_;
  const std::size_t end = used_ + record.stored;
  used_ = aligned(end);
  // The next chunk may need the room; the gap before it is part of the message and must not leak old bytes.
  if (added_ == chunks_)
    used_ = end;
  else
    std::memset(room_.data() + end, 0, used_ - end);
}

ConstBytes FrameWriter::finish(FrameHead head) {
  head.chunks = static_cast<std::uint32_t>(chunks_);
  head.frame_bytes = used_;
  std::memcpy(room_.data(), &head, sizeof head);
  head.crc = crc_of_head(room_, chunks_);
  std::memcpy(room_.data(), &head, sizeof head);
  return room_.first(used_);
}

FrameReader::FrameReader(ConstBytes message, const FrameExpectation& expected) : message_(message) {
  if (message.size() < sizeof head_)
    throw CodecError("a frame of " + std::to_string(message.size()) + " bytes, which is no head");
  std::memcpy(&head_, message.data(), sizeof head_);
  require("magic number", FrameHead::kMagic, head_.magic);
  require("format version", FrameHead::kVersion, head_.version);
  require("frame bytes", message.size(), head_.frame_bytes);
  require("chunks", expected.chunks.size(), head_.chunks);
  const std::size_t first = sizeof head_ + expected.chunks.size() * sizeof(ChunkRecord);
  if (message.size() < first) throw CodecError("a frame that ends before its records do");
  require("head checksum", crc_of_head(message, expected.chunks.size()), head_.crc);
  require("collective", expected.collective, head_.collective);
  require("sequence number", expected.sequence, head_.sequence);
  require("stream bytes", expected.stream_bytes, head_.stream_bytes);
  require("reference checksum", expected.reference, head_.reference);
  require("first chunk", expected.first_chunk, head_.first_chunk);
  require("chunk bytes", expected.chunk_bytes, head_.chunk_bytes);
  records_.resize(expected.chunks.size());
  if (!records_.empty())
    std::memcpy(records_.data(), message.data() + sizeof head_, records_.size() * sizeof(ChunkRecord));
  std::size_t at = first;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const ChunkRecord& record = records_[i];
    const ChunkExpectation& chunk = expected.chunks[i];
    require("chunk size", chunk.raw_bytes, record.raw);
    if (i) at = aligned(at);
    if (record.stored > record.raw || at > message.size() || record.stored > message.size() - at)
      throw CodecError("a chunk of " + std::to_string(record.stored) + " bytes, more than there is room for");
    if (record.flags & ~ChunkRecord::kDelta || (record.flags && !chunk.may_be_difference))
      throw CodecError("a chunk with flags " + std::to_string(record.flags) + ", but its tensor has no reference");
    if (record.codec == CodecId::kNone) {
      require("stored bytes of a plain chunk", record.raw, record.stored);
    } else {
      const CodecRow* codec = find_codec(record.codec);
      if (!codec) throw CodecError("a chunk of unknown codec " + std::to_string(static_cast<int>(record.codec)));
      if (!is_in(expected.codecs, record.codec))
        throw CodecError(std::string("a chunk of codec ") + codec->name + ", which the call did not ask for");
      if (codec->lossy && !chunk.may_be_lossy)
        throw CodecError(std::string("a chunk of the lossy codec ") + codec->name +
                         ", but its tensor must arrive as it is");
      require("codec format", codec->format, record.format);
      if (const std::string reason = why_not_here(*codec); !reason.empty())
        throw CodecError(std::string("a chunk of codec ") + codec->name + ", which does not work here: " + reason);
      require("library version", codec->library_major(), record.library_major);
    }
    require("chunk checksum", crc32c(message.subspan(at, record.stored)), record.crc);
    places_.push_back(at);
    at += record.stored;
  }
  require("end", message.size(), at);
}

void FrameReader::decode(std::size_t i, Datatype type, Bytes out) const {
  const ChunkRecord& record = records_[i];
  const ConstBytes stored = this->stored(i);
  require("room for a chunk", record.raw, out.size());
  if (record.codec == CodecId::kNone) {
    if (!out.empty()) std::memcpy(out.data(), stored.data(), out.size());
    return;
  }
  const CodecRow* codec = find_codec(record.codec);
  if (!codec->takes(type))
    throw CodecError(std::string("a chunk of codec ") + codec->name + ", which has no " + name_of(type));
  codec->decode(type, stored, out);
}

}  // namespace accdp
