#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/shared_library.hpp"

namespace accdp {

/// Folder to look for nvCOMP's libraries in, such as the wheel's `nvidia/libnvcomp/lib64`; empty (the start): where the
/// loader looks. Each library is opened once, at its first use; a change after that has no effect on it.
void set_nvcomp_directory(std::string path);

/// nvCOMP's code, opened at run time: that for the host needs no GPU, driver or CUDA toolkit. Only major version 6 is
/// taken: these interfaces and, in part, the byte formats are the version's own.
namespace nvcomp {

constexpr std::uint8_t kMajor = 6;

/// The enumerators below are numbers of nvCOMP's binary interface.
enum class Word : int {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kU64 = 6,
  kI64 = 7,
  kF32 = 9,
  kF64 = 10,
};
enum class Mode : int { kLossless = 0, kLossy = 1 };

/// The native Bitcomp. Functions answer 0 when all went well. One plan serves one thread at a time.
struct Bitcomp {
  using Plan = void*;

  std::string why_not;  ///< what is missing and how to install it; empty where everything below is callable

  int (*create_plan)(Plan*, std::size_t raw_bytes, Word, Mode, int algorithm) = nullptr;
  int (*destroy_plan)(Plan) = nullptr;
  int (*compress_lossless)(Plan, const void* in, void* out) = nullptr;
  int (*compress_lossy_f32)(Plan, const float* in, void* out, float delta) = nullptr;
  int (*compress_lossy_f64)(Plan, const double* in, void* out, double delta) = nullptr;
  int (*uncompress)(Plan, const void* in, void* out) = nullptr;
  std::size_t (*max_bytes)(std::size_t raw_bytes) = nullptr;
  int (*compressed_bytes)(const void* stream, std::size_t* bytes) = nullptr;
  int (*describe)(const void* stream, std::size_t* stream_bytes, std::size_t* raw_bytes, Word*, Mode*,
                  int* algorithm) = nullptr;
};

/// LZ4's raw blocks.
struct Lz4 {
  std::string why_not;

  int (*compress_fast)(const char* in, char* out, int in_bytes, int out_bytes, int acceleration) = nullptr;
  int (*decompress_safe)(const char* in, char* out, int in_bytes, int out_bytes) = nullptr;
};

// Options of the batched functions, as they go by value through nvCOMP's binary interface: unused bytes are zero.

/// Words as the batched functions number them.
enum class BatchedWord : int { kI8 = 0, kU8 = 1, kI16 = 2, kU16 = 3, kI32 = 4, kU32 = 5, kI64 = 6, kU64 = 7 };
enum class Backend : int { kDefault = 0, kCuda = 2 };
/// What ANS takes data for: it codes their exponents apart from the rest.
enum class AnsType : int { kBytes = 1, kF8E4M3 = 9, kHalves = 10, kF32 = 11, kAsEncoded = 0xff };

struct Lz4Compression {
  BatchedWord word = BatchedWord::kI8;
  int bitshuffle = 0;  ///< none: raw LZ4 blocks
  char reserved[56] = {};
};
struct Lz4Decompression {
  Backend backend = Backend::kCuda;  ///< the hardware's says of damaged input that all went well
  int sorts = 0;
  BatchedWord word = BatchedWord::kI8;
  int bitshuffle = 0;
  char reserved[48] = {};
};
struct BitcompCompression {
  int algorithm = 0;
  BatchedWord word = BatchedWord::kU8;
  double delta = 0;  ///< of the lossy mode
  Mode mode = Mode::kLossless;
  char reserved[44] = {};
};
struct BitcompDecompression {
  Backend backend = Backend::kDefault;
  char reserved[60] = {};
};
struct AnsCompression {
  int algorithm = 0;
  AnsType type = AnsType::kBytes;
  char reserved[56] = {};
};
struct AnsDecompression {
  Backend backend = Backend::kDefault;
  AnsType type = AnsType::kAsEncoded;
  char reserved[56] = {};  ///< zero: chunks are validated
};
static_assert(sizeof(AnsCompression) == 64 && sizeof(AnsDecompression) == 64);
static_assert(sizeof(Lz4Compression) == 64 && sizeof(Lz4Decompression) == 64);
static_assert(sizeof(BitcompCompression) == 64 && sizeof(BitcompDecompression) == 64);

/// Many chunks at once on the current CUDA device, in the order of a stream (a cudaStream_t). Arrays, one element for
/// each chunk, are in device memory as the chunks are. Functions answer 0 when the work was handed over; what became of
/// a chunk is in `statuses`, 0 where all went well.
template <class Compression, class Decompression>
struct Batched {
  std::string why_not;
  std::uint32_t cuda_version = 0;  ///< 1000 * major + 10 * minor, of the CUDA runtime inside

  int (*max_bytes)(std::size_t chunk_bytes, Compression, std::size_t* bytes) = nullptr;
  int (*compression_room)(std::size_t chunks, std::size_t chunk_bytes, Compression, std::size_t* bytes,
                          std::size_t all_bytes, void* stream) = nullptr;
  int (*compress)(const void* const* in, const std::size_t* in_bytes, std::size_t chunk_bytes, std::size_t chunks,
                  void* room, std::size_t room_bytes, void* const* out, std::size_t* out_bytes, Compression,
                  int* statuses, void* stream) = nullptr;
  int (*decompression_room)(std::size_t chunks, std::size_t chunk_bytes, Decompression, std::size_t* bytes,
                            std::size_t all_bytes, void* stream) = nullptr;
  int (*decompress)(const void* const* in, const std::size_t* in_bytes, const std::size_t* most_bytes,
                    std::size_t* out_bytes, std::size_t chunks, void* room, std::size_t room_bytes, void* const* out,
                    Decompression, int* statuses, void* stream) = nullptr;
};
using BatchedLz4 = Batched<Lz4Compression, Lz4Decompression>;
using BatchedBitcomp = Batched<BitcompCompression, BitcompDecompression>;
using BatchedAns = Batched<AnsCompression, AnsDecompression>;

// Each is opened by its first call, independent of the others.
const Bitcomp& bitcomp();
const Lz4& lz4();
const BatchedBitcomp& batched_bitcomp();
const BatchedLz4& batched_lz4();
const BatchedAns& batched_ans();

}  // namespace nvcomp
}  // namespace accdp
