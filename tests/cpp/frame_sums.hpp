#pragma once
#include <cstddef>
#include <cstring>
#include <vector>

#include "codec/crc32c.hpp"
#include "codec/frame.hpp"

inline accdp::ChunkRecord record_of(const std::vector<std::byte>& message, std::size_t chunk) {
  accdp::ChunkRecord record;
  std::memcpy(&record, message.data() + sizeof(accdp::FrameHead) + chunk * sizeof record, sizeof record);
  return record;
}

/// Makes the checksums of a frame fit what it holds now, whatever that is. It must have its head and all records.
inline void repair_sums(std::vector<std::byte>& message, std::size_t chunks) {
  using namespace accdp;
  const std::size_t first = sizeof(FrameHead) + chunks * sizeof(ChunkRecord);
  std::size_t at = first;
  for (std::size_t i = 0; i < chunks; ++i) {
    ChunkRecord record = record_of(message, i);
    at = (at + 15) / 16 * 16;
    if (at <= message.size() && record.stored <= message.size() - at)
      record.crc = crc32c(ConstBytes(message).subspan(at, record.stored));
    at += record.stored;
    std::memcpy(message.data() + sizeof(FrameHead) + i * sizeof record, &record, sizeof record);
  }
  FrameHead head;
  std::memcpy(&head, message.data(), sizeof head);
  const std::uint32_t partial = crc32c(ConstBytes(message).first(offsetof(FrameHead, crc)));
  head.crc = crc32c(ConstBytes(message).subspan(sizeof head, first - sizeof head), partial);
  std::memcpy(message.data(), &head, sizeof head);
}
