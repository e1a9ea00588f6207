// nvCOMP's batched functions on the simulated device: a library of the name of nvCOMP's, whose work on a stream is done
// by nvCOMP's host functions, which the process has opened before (batched_nvcomp.hpp). What a GPU would not take is
// refused with nvCOMP's status for it, and temporary memory is written over, so that too little of it is found.
// nvCOMP has no host functions for ANS: here a stream of it is an LZ4 block behind a head that says what it is of.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "codec/nvcomp_api.hpp"

namespace {

using accdp::nvcomp::AnsCompression;
using accdp::nvcomp::AnsDecompression;
using accdp::nvcomp::AnsType;
using accdp::nvcomp::BitcompCompression;
using accdp::nvcomp::BitcompDecompression;
using accdp::nvcomp::Lz4Compression;
using accdp::nvcomp::Lz4Decompression;

constexpr int kSuccess = 0, kInvalid = 10, kCannotDecompress = 12, kTooSmall = 15, kMisaligned = 17, kCudaError = 1000;

int enqueue(const char* call, void* stream, void* room, std::size_t room_bytes, std::function<void()> work) {
  const auto with_room = [=] {
    if (room_bytes) std::memset(room, 0x5a, room_bytes);
    work();
  };
  return cudasim::enqueue(call, static_cast<cudaStream_t>(stream), with_room) == cudaSuccess ? kSuccess : kCudaError;
}

bool is_aligned(const void* address, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

struct Plan {
  void* raw = nullptr;
  Plan(std::size_t bytes, accdp::nvcomp::Word word) {
    accdp::nvcomp::bitcomp().create_plan(&raw, bytes, word, accdp::nvcomp::Mode::kLossless, 0);
  }
  ~Plan() { accdp::nvcomp::bitcomp().destroy_plan(raw); }
};

int compress_bitcomp(accdp::nvcomp::BatchedWord word, const void* in, std::size_t bytes, void* out,
                     std::size_t* out_bytes) {
  const auto native = static_cast<accdp::nvcomp::Word>(static_cast<int>(word) ^ 1);
  const std::size_t width = std::size_t{1} << static_cast<int>(word) / 2;
  if (!is_aligned(in, width) || bytes % width || !is_aligned(out, 8)) return kMisaligned;
  const Plan plan(bytes, native);
  if (accdp::nvcomp::bitcomp().compress_lossless(plan.raw, in, out) != 0) return kCudaError;
  return accdp::nvcomp::bitcomp().compressed_bytes(out, out_bytes);
}

int decompress_bitcomp(const void* in, std::size_t in_bytes, void* out, std::size_t most_bytes,
                       std::size_t* out_bytes) {
  if (!is_aligned(in, 8) || !is_aligned(out, 8)) return kMisaligned;
  std::size_t bytes = 0;
  accdp::nvcomp::Word word{};
  accdp::nvcomp::Mode mode{};
  int algorithm = 0;
  if (accdp::nvcomp::bitcomp().describe(in, &in_bytes, &bytes, &word, &mode, &algorithm) != 0) return kCannotDecompress;
  if (bytes > most_bytes) return kTooSmall;
  const Plan plan(bytes, word);
  *out_bytes = bytes;
  return accdp::nvcomp::bitcomp().uncompress(plan.raw, in, out) == 0 ? kSuccess : kCannotDecompress;
}

/// Streams of another version are not decoded.
std::uint64_t ans_magic() {
  const char* const version = std::getenv("CUDASIM_ANS_VERSION");
  return 0x534e412064656d61 + (version ? static_cast<std::uint64_t>(*version) : 0);
}

int lz4_room(std::size_t bytes) { return static_cast<int>(bytes + bytes / 255 + 16); }

struct AnsHead {
  std::uint64_t magic;
  AnsType type;
  std::uint32_t bytes;
};

/// As of nvCOMP's, it is not in proportion to the bytes, nor the same for all types.
std::size_t ans_room(AnsType type, std::size_t bytes) {
  return sizeof(AnsHead) + static_cast<std::size_t>(lz4_room(bytes)) + 700 * (static_cast<int>(type) % 4);
}

int ans_width(AnsType type) { return type == AnsType::kF32 ? 4 : type == AnsType::kHalves ? 2 : 1; }

int compress_ans(AnsType type, const void* in, std::size_t bytes, std::size_t longest, void* out,
                 std::size_t* out_bytes) {
  if (!is_aligned(in, 16) || !is_aligned(out, 16) || bytes % ans_width(type)) return kMisaligned;
  std::memset(out, 0x5a, ans_room(type, longest));  // all that it may
  const AnsHead head{ans_magic(), type, static_cast<std::uint32_t>(bytes)};
  std::memcpy(out, &head, sizeof head);
  const int stored = accdp::nvcomp::lz4().compress_fast(
      static_cast<const char*>(in), static_cast<char*>(out) + sizeof head, static_cast<int>(bytes), lz4_room(bytes), 1);
  *out_bytes = sizeof head + static_cast<std::size_t>(stored);
  return stored > 0 ? kSuccess : kTooSmall;
}

int decompress_ans(AnsType type, const void* in, std::size_t in_bytes, void* out, std::size_t most_bytes,
                   std::size_t* out_bytes) {
  if (!is_aligned(in, 16) || !is_aligned(out, 16)) return kMisaligned;
  AnsHead head{};
  if (in_bytes < sizeof head) return kCannotDecompress;
  std::memcpy(&head, in, sizeof head);
  if (head.magic != ans_magic() || (type != AnsType::kAsEncoded && type != head.type)) return kCannotDecompress;
  const int bytes =
      accdp::nvcomp::lz4().decompress_safe(static_cast<const char*>(in) + sizeof head, static_cast<char*>(out),
                                           static_cast<int>(in_bytes - sizeof head), static_cast<int>(most_bytes));
  if (bytes < 0 || static_cast<std::uint32_t>(bytes) != head.bytes) return kCannotDecompress;
  *out_bytes = head.bytes;
  return kSuccess;
}

}  // namespace

extern "C" {

int nvcompGetProperties(std::uint32_t* properties) {
  properties[0] = 1000 * accdp::nvcomp::kMajor;
  properties[1] = CUDART_VERSION;
  return kSuccess;
}

int nvcompBatchedLZ4CompressGetMaxOutputChunkSize(std::size_t bytes, Lz4Compression, std::size_t* most) {
  *most = static_cast<std::size_t>(lz4_room(bytes));
  return kSuccess;
}
int nvcompBatchedLZ4CompressGetTempSize(std::size_t, std::size_t, Lz4Compression, std::size_t* room, std::size_t all,
                                        void*) {
  *room = 2 * all;
  return kSuccess;
}
int nvcompBatchedLZ4CompressAsync(const void* const* in, const std::size_t* in_bytes, std::size_t, std::size_t chunks,
                                  void* room, std::size_t room_bytes, void* const* out, std::size_t* out_bytes,
                                  Lz4Compression how, int* statuses, void* stream) {
  return enqueue(__func__, stream, room, room_bytes, [=] {
    for (std::size_t i = 0; i < chunks; ++i) {
      std::size_t most = 0;
      nvcompBatchedLZ4CompressGetMaxOutputChunkSize(in_bytes[i], how, &most);
      const int bytes = accdp::nvcomp::lz4().compress_fast(static_cast<const char*>(in[i]), static_cast<char*>(out[i]),
                                                           static_cast<int>(in_bytes[i]), static_cast<int>(most), 1);
      out_bytes[i] = static_cast<std::size_t>(bytes);
      statuses[i] = bytes > 0 ? kSuccess : kTooSmall;
    }
  });
}
int nvcompBatchedLZ4DecompressGetTempSize(std::size_t, std::size_t, Lz4Decompression, std::size_t* room, std::size_t,
                                          void*) {
  *room = 0;
  return kSuccess;
}
int nvcompBatchedLZ4DecompressAsync(const void* const* in, const std::size_t* in_bytes, const std::size_t* most_bytes,
                                    std::size_t* out_bytes, std::size_t chunks, void* room, std::size_t room_bytes,
                                    void* const* out, Lz4Decompression, int* statuses, void* stream) {
  return enqueue(__func__, stream, room, room_bytes, [=] {
    for (std::size_t i = 0; i < chunks; ++i) {
      const int bytes =
          accdp::nvcomp::lz4().decompress_safe(static_cast<const char*>(in[i]), static_cast<char*>(out[i]),
                                               static_cast<int>(in_bytes[i]), static_cast<int>(most_bytes[i]));
      statuses[i] = bytes >= 0 ? kSuccess : kCannotDecompress;
      if (bytes >= 0) out_bytes[i] = static_cast<std::size_t>(bytes);
      if (bytes > 0 && std::getenv("CUDASIM_LZ4_SPOILS")) *static_cast<unsigned char*>(out[i]) ^= 1;
    }
  });
}

int nvcompBatchedANSCompressGetMaxOutputChunkSize(std::size_t bytes, AnsCompression how, std::size_t* most) {
  *most = ans_room(how.type, bytes);
  return how.type == AnsType::kAsEncoded ? kInvalid : kSuccess;
}
int nvcompBatchedANSCompressGetTempSize(std::size_t, std::size_t, AnsCompression, std::size_t* room, std::size_t,
                                        void*) {
  *room = 0;
  return kSuccess;
}
int nvcompBatchedANSCompressAsync(const void* const* in, const std::size_t* in_bytes, std::size_t longest,
                                  std::size_t chunks, void* room, std::size_t room_bytes, void* const* out,
                                  std::size_t* out_bytes, AnsCompression how, int* statuses, void* stream) {
  return enqueue(__func__, stream, room, room_bytes, [=] {
    for (std::size_t i = chunks; i-- > 0;)  // what writes over its place spoils the one behind it
      statuses[i] = compress_ans(how.type, in[i], in_bytes[i], longest, out[i], out_bytes + i);
  });
}
int nvcompBatchedANSDecompressGetTempSize(std::size_t, std::size_t, AnsDecompression, std::size_t* room, std::size_t,
                                          void*) {
  *room = 0;
  return kSuccess;
}
int nvcompBatchedANSDecompressAsync(const void* const* in, const std::size_t* in_bytes, const std::size_t* most_bytes,
                                    std::size_t* out_bytes, std::size_t chunks, void* room, std::size_t room_bytes,
                                    void* const* out, AnsDecompression how, int* statuses, void* stream) {
  return enqueue(__func__, stream, room, room_bytes, [=] {
    for (std::size_t i = 0; i < chunks; ++i)
      statuses[i] = decompress_ans(how.type, in[i], in_bytes[i], out[i], most_bytes[i], out_bytes + i);
  });
}

int nvcompBatchedBitcompCompressGetMaxOutputChunkSize(std::size_t bytes, BitcompCompression, std::size_t* most) {
  *most = accdp::nvcomp::bitcomp().max_bytes(bytes);
  return kSuccess;
}
int nvcompBatchedBitcompCompressGetTempSize(std::size_t, std::size_t, BitcompCompression, std::size_t* room,
                                            std::size_t, void*) {
  *room = 0;
  return kSuccess;
}
int nvcompBatchedBitcompCompressAsync(const void* const* in, const std::size_t* in_bytes, std::size_t,
                                      std::size_t chunks, void* room, std::size_t room_bytes, void* const* out,
                                      std::size_t* out_bytes, BitcompCompression how, int* statuses, void* stream) {
  return enqueue(__func__, stream, room, room_bytes, [=] {
    for (std::size_t i = 0; i < chunks; ++i)
      statuses[i] = compress_bitcomp(how.word, in[i], in_bytes[i], out[i], out_bytes + i);
  });
}
int nvcompBatchedBitcompDecompressGetTempSize(std::size_t, std::size_t, BitcompDecompression, std::size_t* room,
                                              std::size_t, void*) {
  *room = 20;
  return kSuccess;
}
int nvcompBatchedBitcompDecompressAsync(const void* const* in, const std::size_t* in_bytes,
                                        const std::size_t* most_bytes, std::size_t* out_bytes, std::size_t chunks,
                                        void* room, std::size_t room_bytes, void* const* out, BitcompDecompression,
                                        int* statuses, void* stream) {
  return enqueue(__func__, stream, room, room_bytes, [=] {
    for (std::size_t i = 0; i < chunks; ++i)
      statuses[i] = decompress_bitcomp(in[i], in_bytes[i], out[i], most_bytes[i], out_bytes + i);
  });
}

}  // extern "C"
