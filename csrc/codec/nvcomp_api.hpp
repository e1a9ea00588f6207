#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "codec/shared_library.hpp"

namespace accdp {

/// Folder to look for nvCOMP's libraries in, such as the wheel's `nvidia/libnvcomp/lib64`; empty (the start): where the
/// loader looks. Each library is opened once, at its first use; a change after that has no effect on it.
void set_nvcomp_directory(std::string path);

/// nvCOMP's code for the host, opened at run time: no GPU, driver or CUDA toolkit is needed. Only major version 6 is
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

const Bitcomp& bitcomp();  ///< opened by the first call
const Lz4& lz4();          ///< likewise, independent of it

}  // namespace nvcomp
}  // namespace accdp
