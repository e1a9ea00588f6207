#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "codec/codec.hpp"

namespace accdp {

// What travels in one message of a compressed stream: a head, one record per chunk, the chunks' bytes.
// Little endian; every chunk's bytes begin at a multiple of 16 from the frame's start.

struct FrameHead {
  static constexpr std::uint32_t kMagic = 0x50444341;  // "ACDP"
  static constexpr std::uint8_t kVersion = 1;
  std::uint32_t magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t collective = 0;  ///< OpKind
  std::uint16_t reserved = 0;
  std::uint64_t sequence = 0;      ///< of the operation in its group
  std::uint64_t stream_bytes = 0;  ///< of the whole operation, before encoding
  std::uint64_t reference = 0;     ///< checksum of what DELTA chunks are to be added to; 0: there are none
  std::uint64_t first_chunk = 0;   ///< number of this frame's first chunk in the stream
  std::uint32_t chunks = 0;
  std::uint32_t chunk_bytes = 0;  ///< of the stream: no chunk is longer
  std::uint64_t frame_bytes = 0;  ///< of this message
  std::uint32_t spare = 0;
  std::uint32_t crc = 0;  ///< CRC-32C of the bytes of the head before it, and of the records
};
static_assert(sizeof(FrameHead) == 64);

struct ChunkRecord {
  enum Flag : std::uint8_t { kDelta = 1 };  ///< the decoded bytes are differences to the reference
  std::uint32_t stored = 0;                 ///< bytes in the frame
  std::uint32_t raw = 0;                    ///< bytes after decoding
  std::uint32_t crc = 0;                    ///< CRC-32C of the stored bytes
  CodecId codec = CodecId::kNone;
  std::uint8_t format = 0;
  std::uint8_t library_major = 0;
  std::uint8_t flags = 0;
};
static_assert(sizeof(ChunkRecord) == 16);

/// Bytes that a frame can take up at most.
std::size_t frame_room(std::size_t raw_bytes, std::size_t chunks) noexcept;

/// Puts a frame together in memory that has frame_room().
class FrameWriter {
 public:
  FrameWriter(Bytes room, std::size_t chunks);
  /// Encodes one chunk and puts it in; as it is where `codec` is null or does not make it smaller: then false.
  bool add(const CodecRow* codec, const Encoding& how, ConstBytes raw, std::uint8_t flags = 0);
  /// Puts in a chunk of `raw_bytes` that `codec` has made smaller already.
  void add_encoded(const CodecRow& codec, std::size_t raw_bytes, ConstBytes stored, std::uint8_t flags);
  /// The message. `head` needs the fields that do not follow from the chunks.
  ConstBytes finish(FrameHead head);

 private:
  void put(ChunkRecord record);  // its stored bytes are in place

  Bytes room_;
  std::size_t chunks_, added_ = 0, used_;
};

/// What the receiver knows about a chunk from its own call, and about the frame.
struct ChunkExpectation {
  std::uint32_t raw_bytes;
  bool may_be_lossy = false, may_be_difference = false;  ///< as its tensors allow
};
struct FrameExpectation {
  std::uint8_t collective;
  std::uint64_t sequence, stream_bytes, reference;
  std::uint64_t first_chunk;
  std::uint32_t chunk_bytes;
  std::span<const ChunkExpectation> chunks;
  std::uint32_t codecs = ~0U;  ///< that they may be of (bit_of)
};

/// A received frame that fits the expectation; its chunks' checksums are right. Refers to the message's bytes.
class FrameReader {
 public:
  /// Throws CodecError saying what is wrong. Reads nothing outside `message`.
  FrameReader(ConstBytes message, const FrameExpectation& expected);
  std::size_t chunks() const { return records_.size(); }
  const ChunkRecord& record(std::size_t i) const { return records_[i]; }
  ConstBytes stored(std::size_t i) const { return message_.subspan(places_[i], records_[i].stored); }
  /// Decodes chunk i into `out`, which has the expected raw size.
  void decode(std::size_t i, Datatype type, Bytes out) const;

 private:
  ConstBytes message_;
  FrameHead head_;
  std::vector<ChunkRecord> records_;
  std::vector<std::size_t> places_;
};

}  // namespace accdp
