#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "codec/codec.hpp"

/// Bytes that end where the next page cannot be touched, so that code of foreign libraries too is caught outside of
/// them; `skew` bytes before the page stay free, which gives other alignments.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes, std::size_t skew = 0) : bytes_(bytes) {
    const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t usable = (bytes + skew + page - 1) / page * page;
    mapped_ = usable + page;
    base_ =
        static_cast<std::byte*>(::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    CHECK(base_ != MAP_FAILED);
    CHECK(::mprotect(base_ + usable, page, PROT_NONE) == 0);
    data_ = base_ + usable - skew - bytes;
  }
  Guarded(accdp::ConstBytes copied, std::size_t skew = 0) : Guarded(copied.size(), skew) {
    if (!copied.empty()) std::memcpy(data_, copied.data(), copied.size());
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { ::munmap(base_, mapped_); }

  accdp::Bytes bytes() const { return {data_, bytes_}; }

 private:
  std::byte *base_, *data_;
  std::size_t bytes_, mapped_;
};

inline constexpr accdp::Datatype kAllTypes[] = {
    accdp::Datatype::kBool, accdp::Datatype::kU8,  accdp::Datatype::kI8,   accdp::Datatype::kU16,
    accdp::Datatype::kI16,  accdp::Datatype::kU32, accdp::Datatype::kI32,  accdp::Datatype::kU64,
    accdp::Datatype::kI64,  accdp::Datatype::kF16, accdp::Datatype::kBF16, accdp::Datatype::kF32,
    accdp::Datatype::kF64,  accdp::Datatype::kC64, accdp::Datatype::kC128, accdp::Datatype::kBytes,
};

enum class Fill { kZeros, kNoise, kWords, kSparse };
inline constexpr Fill kAllFills[] = {Fill::kZeros, Fill::kNoise, Fill::kWords, Fill::kSparse};

/// kNoise has every bit pattern there is: NaNs with payloads, infinities, denormals. kWords repeats a few of them, with
/// small changes in the first byte. kSparse is zero but for one byte in fifty.
inline std::vector<std::byte> filled(Fill fill, std::size_t bytes, std::size_t element) {
  std::mt19937_64 random(bytes * 4 + static_cast<std::size_t>(fill));
  std::vector<std::byte> data(bytes);
  std::byte words[8][16];
  for (auto& word : words)
    for (std::byte& value : word) value = static_cast<std::byte>(random());
  for (std::size_t i = 0; i < bytes; ++i) {
    if (fill == Fill::kNoise) data[i] = static_cast<std::byte>(random());
    if (fill == Fill::kWords)
      data[i] = i % element ? words[random() % 2 + i / element % 7][i % element] : static_cast<std::byte>(random() % 5);
    if (fill == Fill::kSparse && random() % 50 == 0) data[i] = static_cast<std::byte>(random());
  }
  return data;
}

inline bool are_same(accdp::ConstBytes one, accdp::ConstBytes other) { return std::ranges::equal(one, other); }

/// Encodes and decodes between guarded buffers; returns the encoded bytes, 0 where the chunk would be sent as it is.
inline std::size_t check_exact(const accdp::CodecRow& row, accdp::Datatype type, accdp::ConstBytes data,
                               std::size_t skew) {
  const Guarded in(data, skew), out(data.size(), skew);
  const std::size_t bytes = row.encode({type, 0}, in.bytes(), out.bytes());
  CHECK(are_same(in.bytes(), data));
  if (bytes == 0) return 0;
  CHECK(bytes < data.size());
  const Guarded stream(out.bytes().first(bytes), skew), restored(data.size(), skew);
  row.decode(type, stream.bytes(), restored.bytes());
  CHECK(are_same(restored.bytes(), data));
  return bytes;
}

inline void check_exact_everywhere(const accdp::CodecRow& row) {
  for (accdp::Datatype type : kAllTypes)
    for (Fill fill : kAllFills)
      for (std::size_t count : {0, 1, 2, 3, 31, 255, 1025, 5000, 40001})
        for (std::size_t skew : {0, 1, 4, 15}) {
          const std::size_t bytes = count * accdp::element_bytes(type);
          const std::size_t encoded = check_exact(row, type, filled(fill, bytes, accdp::element_bytes(type)), skew);
          if (fill == Fill::kZeros && bytes >= 16000) CHECK(encoded > 0 && encoded < bytes / 8);
          if (count == 0) CHECK(encoded == 0);
        }
}

/// Streams with random damage or cut off: decoding refuses them or restores something, inside its buffers.
inline void check_survives_damage(const accdp::CodecRow& row, accdp::Datatype type, Fill fill, int rounds) {
  const std::size_t bytes = 5000 * accdp::element_bytes(type);
  const std::vector<std::byte> data = filled(fill, bytes, accdp::element_bytes(type));
  std::vector<std::byte> stream(bytes);
  stream.resize(row.encode({type, 0}, data, stream));
  if (stream.empty()) return;
  std::mt19937_64 random(7);
  const Guarded out(bytes);
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::byte> damaged = stream;
    const int changes = static_cast<int>(random() % 4);
    // Half of the changes hit the first bytes, where headers are.
    for (int i = 0; i < changes; ++i)
      damaged[random() % (random() % 2 ? damaged.size() : std::min<std::size_t>(damaged.size(), 64))] =
          static_cast<std::byte>(random());
    const bool is_cut = changes == 0 || random() % 4 == 0;
    if (is_cut) damaged.resize(random() % damaged.size());
    const Guarded in{accdp::ConstBytes(damaged)};
    try {
      row.decode(type, in.bytes(), out.bytes());
      CHECK(changes > 0);
    } catch (const accdp::CodecError&) {
    }
  }
}

/// Several threads at once, each with data of its own.
inline void check_threads(const accdp::CodecRow& row) {
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 2; ++thread)
    threads.emplace_back([&row, thread] {
      for (std::size_t round = 0; round < 40; ++round)
        for (Fill fill : kAllFills)
          check_exact(row, accdp::Datatype::kF32, filled(fill, 4 * (9000 + 100 * round + thread), 4), 0);
    });
  for (std::thread& thread : threads) thread.join();
}

/// A stream kept from the past restores to `expected`, whatever today's encoder would make of it.
inline void check_stored(const accdp::CodecRow& row, accdp::Datatype type, std::vector<unsigned char> stream,
                         const void* expected, std::size_t bytes) {
  const Guarded in(std::as_bytes(std::span(stream))), out(bytes);
  row.decode(type, in.bytes(), out.bytes());
  CHECK(std::memcmp(out.bytes().data(), expected, bytes) == 0);
}
