#include "codec/nvcomp_api.hpp"

#include <cstdint>
#include <mutex>
#include <utility>

namespace accdp {
namespace nvcomp {
namespace {

struct Directory {
  std::mutex mutex;
  std::string path;
};

Directory& directory() {
  static Directory instance;
  return instance;
}

struct Properties {
  std::uint32_t version;  // 1000 * major + 100 * minor + patch
  std::uint32_t cuda_version;
};

/// A library of nvCOMP's that is being opened: either everything was found or why_not() says what was not.
class Opening {
 public:
  explicit Opening(const std::string& stem) : name_(stem + ".so." + std::to_string(kMajor)), library_(path()) {
    if (!library_) why_not_ = "nvCOMP's " + name_ + " could not be opened (" + library_.error() + ")" + kRemedy;
  }

  template <class Function>
  Opening& find(const char* symbol, Function*& function) {
    if (library_ && !library_.find(symbol, function) && why_not_.empty())
      why_not_ = "nvCOMP's " + name_ + " has no " + symbol + kRemedy;
    return *this;
  }

  /// Returns the version of the CUDA runtime that the library has inside.
  std::uint32_t require_version() {
    int (*properties)(Properties*) = nullptr;
    find("nvcompGetProperties", properties);
    if (!why_not_.empty()) return 0;
    Properties found{};
    if (properties(&found) != 0 || found.version / 1000 != kMajor)
      why_not_ = "nvCOMP's " + name_ + " says it is version " + std::to_string(found.version) + kRemedy;
    return found.cuda_version;
  }

  /// The library stays open until the process ends: threads may be inside it even then.
  std::string keep() && {
    library_.leak();
    return std::move(why_not_);
  }

 private:
  static constexpr const char* kRemedy = "; install nvCOMP 6 with `pip install nvidia-libnvcomp-cu13`";

  std::string path() const {
    const std::lock_guard lock(directory().mutex);
    return directory().path.empty() ? name_ : directory().path + "/" + name_;
  }

  std::string name_;
  SharedLibrary library_;
  std::string why_not_;
};

Bitcomp open_bitcomp() {
  Bitcomp api;
  Opening opening("libnvcomp");
  opening.require_version();
  opening.find("bitcompCreatePlan", api.create_plan)
      .find("bitcompDestroyPlan", api.destroy_plan)
      .find("bitcompHostCompressLossless", api.compress_lossless)
      .find("bitcompHostCompressLossy_fp32", api.compress_lossy_f32)
      .find("bitcompHostCompressLossy_fp64", api.compress_lossy_f64)
      .find("bitcompHostUncompress", api.uncompress)
      .find("bitcompMaxBuflen", api.max_bytes)
      .find("bitcompGetCompressedSize", api.compressed_bytes)
      .find("bitcompGetCompressedInfo", api.describe);
  api.why_not = std::move(opening).keep();
  return api;
}

Lz4 open_lz4() {
  Lz4 api;
  Opening opening("libnvcomp_cpu");
  opening.find("LZ4_compress_fast", api.compress_fast).find("LZ4_decompress_safe", api.decompress_safe);
  api.why_not = std::move(opening).keep();
  return api;
}

template <class Api>
Api open_batched(const std::string& codec) {
  Api api;
  Opening opening("libnvcomp");
  api.cuda_version = opening.require_version();
  const auto find = [&](const char* what, auto& function) {
    opening.find(("nvcompBatched" + codec + what).c_str(), function);
  };
  find("CompressGetMaxOutputChunkSize", api.max_bytes);
  find("CompressGetTempSize", api.compression_room);
  find("CompressAsync", api.compress);
  find("DecompressGetTempSize", api.decompression_room);
  find("DecompressAsync", api.decompress);
  api.why_not = std::move(opening).keep();
  return api;
}

}  // namespace

const Bitcomp& bitcomp() {
  static const Bitcomp* const api = new Bitcomp(open_bitcomp());
  return *api;
}

const Lz4& lz4() {
  static const Lz4* const api = new Lz4(open_lz4());
  return *api;
}

const BatchedBitcomp& batched_bitcomp() {
  static const BatchedBitcomp* const api = new BatchedBitcomp(open_batched<BatchedBitcomp>("Bitcomp"));
  return *api;
}

const BatchedLz4& batched_lz4() {
  static const BatchedLz4* const api = new BatchedLz4(open_batched<BatchedLz4>("LZ4"));
  return *api;
}

const BatchedAns& batched_ans() {
  static const BatchedAns* const api = new BatchedAns(open_batched<BatchedAns>("ANS"));
  return *api;
}

}  // namespace nvcomp

void set_nvcomp_directory(std::string path) {
  const std::lock_guard lock(nvcomp::directory().mutex);
  nvcomp::directory().path = std::move(path);
}

}  // namespace accdp
