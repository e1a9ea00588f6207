#include "codec/zstd_api.hpp"

#include <cstring>
#include <new>

#include "base/handle.hpp"
#include "base/shared_library.hpp"

namespace accdp::zstd {
namespace {

constexpr const char* kLibrary = "libzstd.so.1";

// Numbers of libzstd's interface. The literal mode is one that libzstd calls experimental, so its presence is
// checked, not assumed; it changes how frames are made, never how they are read.
constexpr int kCompressionLevel = 100;
constexpr int kWindowLog = 101;
constexpr int kMinMatch = 105;
constexpr int kLiteralMode = 1002;
constexpr int kLiteralsAlwaysHuffman = 1;
constexpr int kFastestUsefulLevel = -100;
// Shorter repetitions, which exponents are full of, take fewer bits as literals.
constexpr int kLongestMinMatch = 7;
// A block of a frame is no longer than its window, and has a Huffman table of its own if that pays: what is usual among
// exponents changes from layer to layer and row to row. With 32 KiB real weights and gradients (bfloat16) take 0.6 %
// fewer bytes than with the 128 KiB that libzstd would take, in the same time; with less, decoding takes longer.
constexpr int kShortWindowLog = 15;
constexpr unsigned char kFrameMagic[4] = {0x28, 0xb5, 0x2f, 0xfd};

struct Library {
  SharedLibrary library{kLibrary};
  std::string why_not;

  unsigned (*is_error)(std::size_t) = nullptr;
  void* (*create_compressor)() = nullptr;
  std::size_t (*free_compressor)(void*) = nullptr;
  std::size_t (*set_parameter)(void*, int parameter, int value) = nullptr;
  std::size_t (*compress)(void*, void* out, std::size_t out_bytes, const void* in, std::size_t in_bytes) = nullptr;
  void* (*create_decompressor)() = nullptr;
  std::size_t (*free_decompressor)(void*) = nullptr;
  std::size_t (*decompress)(void*, void* out, std::size_t out_bytes, const void* in, std::size_t in_bytes) = nullptr;
  std::size_t (*frame_bytes)(const void* in, std::size_t in_bytes) = nullptr;

  Library() {
    if (!library)
      why_not = std::string(kLibrary) + " was not found; install it with `apt install libzstd1` (Debian, Ubuntu), " +
                "`dnf install libzstd` (Fedora, RHEL) or `conda install zstd`";
    else if (!find_all() || !forces_huffman())
      why_not = std::string(kLibrary) + " is older than 1.4; install a newer libzstd";
  }

  bool find_all() {
    return library.find("ZSTD_isError", is_error) && library.find("ZSTD_createCCtx", create_compressor) &&
           library.find("ZSTD_freeCCtx", free_compressor) && library.find("ZSTD_CCtx_setParameter", set_parameter) &&
           library.find("ZSTD_compress2", compress) && library.find("ZSTD_createDCtx", create_decompressor) &&
           library.find("ZSTD_freeDCtx", free_decompressor) && library.find("ZSTD_decompressDCtx", decompress) &&
           library.find("ZSTD_findFrameCompressedSize", frame_bytes);
  }

  bool forces_huffman() {
    void* compressor = create_compressor();
    const bool forces = compressor && !is_error(set_parameter(compressor, kLiteralMode, kLiteralsAlwaysHuffman));
    free_compressor(compressor);
    return forces;
  }
};

/// Never closed: contexts of threads that end late still call into it.
const Library& api() {
  static const Library* const loaded = new Library;
  return *loaded;
}

struct CompressorTraits {
  using Raw = void*;
  static Raw none() noexcept { return nullptr; }
  static void close(Raw context) noexcept { api().free_compressor(context); }
};
struct DecompressorTraits {
  using Raw = void*;
  static Raw none() noexcept { return nullptr; }
  static void close(Raw context) noexcept { api().free_decompressor(context); }
};

using Compressor = Handle<CompressorTraits>;
using Decompressor = Handle<DecompressorTraits>;

Compressor make_compressor(Effort effort) {
  Compressor made(api().create_compressor());
  if (!made) throw std::bad_alloc();
  if (effort == Effort::kHuffman) {
    api().set_parameter(made.get(), kCompressionLevel, kFastestUsefulLevel);
    api().set_parameter(made.get(), kMinMatch, kLongestMinMatch);
    api().set_parameter(made.get(), kWindowLog, kShortWindowLog);
    api().set_parameter(made.get(), kLiteralMode, kLiteralsAlwaysHuffman);
  } else {
    api().set_parameter(made.get(), kCompressionLevel, 1);
  }
  return made;
}

void* compressor(Effort effort) {
  if (effort == Effort::kHuffman) {
    thread_local const Compressor mine = make_compressor(Effort::kHuffman);
    return mine.get();
  }
  thread_local const Compressor mine = make_compressor(Effort::kFast);
  return mine.get();
}

void* decompressor() {
  thread_local const Decompressor mine(api().create_decompressor());
  if (!mine) throw std::bad_alloc();
  return mine.get();
}

}  // namespace

const std::string& why_not() { return api().why_not; }

std::size_t compress(Effort effort, ConstBytes in, Bytes out) {
  const std::size_t bytes = api().compress(compressor(effort), out.data(), out.size(), in.data(), in.size());
  return api().is_error(bytes) ? 0 : bytes;
}

bool decompress(ConstBytes in, Bytes out) {
  // libzstd would also read several frames in a row and the formats of its first years, whose decoders are less well
  // tried; one frame of today's format is all that compress() makes.
  if (in.size() < sizeof kFrameMagic || std::memcmp(in.data(), kFrameMagic, sizeof kFrameMagic) != 0) return false;
  if (api().frame_bytes(in.data(), in.size()) != in.size()) return false;
  return api().decompress(decompressor(), out.data(), out.size(), in.data(), in.size()) == out.size();
}

}  // namespace accdp::zstd
