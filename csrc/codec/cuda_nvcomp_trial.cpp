// Whether nvCOMP works here is seen before it is relied on: its library carries a CUDA runtime of its own, whose
// kernels this driver may not load and this GPU not run. What failed in the midst of a call would fail it on all ranks;
// what is known beforehand the host encodes.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "base/keep.hpp"
#include "codec/cuda_nvcomp.hpp"

namespace accdp {
namespace {

constexpr std::size_t kTrialBytes = 16 << 10;

/// As small for every codec and datatype: a few numbers near 1, again and again, behind as many zeros.
std::vector<std::byte> data_for_trial() {
  std::vector<std::byte> data(kTrialBytes);
  for (std::size_t at = kTrialBytes / 2; at < kTrialBytes; at += sizeof(float)) {
    const float number = 1 + static_cast<float>(at / sizeof(float) % 16) / 16;
    std::memcpy(data.data() + at, &number, sizeof number);
  }
  return data;
}

/// One chunk there and back, in memory of one device. Its owner never frees that: to free memory is to wait for all
/// that the device does. One trial at a time, each on a stream of its own, which has done its work at the end; unless
/// an error that is not nvCOMP's came out: what was begun may then go on, and the owner has to keep all this for ever.
class Trial {
 public:
  /// Empty where it came back as it was; else what was wrong.
  std::string why_not(CodecId codec, Datatype type) {
    stream_ = make_stream();
    std::string why_not = attempt(codec, type, stream_.get());
    stream_ = {};
    return why_not;
  }

 private:
  std::string attempt(CodecId codec, Datatype type, cudaStream_t stream) {
    const std::vector<std::byte> data = data_for_trial();
    try {
      const std::size_t room = nvcomp_room(codec, type, kTrialBytes);
      grow(encoded_, room, stream);
      std::memcpy(sent_.data(), data.data(), kTrialBytes);
      copy_async(plain_.data(), sent_.data(), kTrialBytes, stream);
      const std::uint32_t size = encode(codec, type, room, stream);
      if (size == 0) return "it encoded nothing";
      if (decode(codec, type, size, stream)) return "it did not decode what it had encoded";
    } catch (const NvcompError& error) {
      drain(stream);  // what it had begun
      return error.what();
    }
    return std::equal(data.begin(), data.end(), seen_.data()) ? "" : "what it decoded is not what it had encoded";
  }
  std::uint32_t encode(CodecId codec, Datatype type, std::size_t room, cudaStream_t stream) {
    const DeviceChunk chunk{plain_.data(), encoded_.data(), kTrialBytes, static_cast<std::uint32_t>(room)};
    codec_.encode_async(codec, {type}, {&chunk, 1}, word(device_word_.data()), stream);
    return fetched_word(stream);
  }
  /// Whether it was damaged.
  std::uint32_t decode(CodecId codec, Datatype type, std::uint32_t size, cudaStream_t stream) {
    *word(host_word_.data()) = 0;
    copy_async(device_word_.data(), host_word_.data(), sizeof(std::uint32_t), stream);
    std::memset(seen_.data(), 0xff, kTrialBytes);
    copy_async(plain_.data(), seen_.data(), kTrialBytes, stream);
    const DeviceChunk chunk{encoded_.data(), plain_.data(), size, kTrialBytes};
    codec_.decode_async(codec, type, {&chunk, 1}, word(device_word_.data()), stream);
    copy_async(seen_.data(), plain_.data(), kTrialBytes, stream);
    return fetched_word(stream);
  }
  std::uint32_t fetched_word(cudaStream_t stream) {
    copy_async(host_word_.data(), device_word_.data(), sizeof(std::uint32_t), stream);
    synchronize(stream);
    return *word(host_word_.data());
  }
  static std::uint32_t* word(std::byte* at) { return reinterpret_cast<std::uint32_t*>(at); }

  DeviceBuffer plain_{kTrialBytes}, encoded_, device_word_{sizeof(std::uint32_t)};
  PinnedBuffer sent_{kTrialBytes}, seen_{kTrialBytes}, host_word_{sizeof(std::uint32_t)};
  NvcompCodec codec_;
  Stream stream_;
};

}  // namespace

bool nvcomp_encodes_on_device(CodecId codec, Datatype type) {
  if (!nvcomp_takes(codec, type) || !has_nvcomp_for_device(codec)) return false;
  static std::mutex mutex;
  static auto* const trials = new std::map<int, std::unique_ptr<Trial>>;
  static auto* const works = new std::map<std::tuple<int, CodecId, Datatype>, bool>;
  const std::lock_guard lock(mutex);
  const int device = current_device();
  const std::tuple key{device, codec, type};
  if (const auto known = works->find(key); known != works->end()) return known->second;
  std::unique_ptr<Trial>& trial = (*trials)[device];
  if (!trial) trial = std::make_unique<Trial>();
  std::string why_not;
  try {
    why_not = trial->why_not(codec, type);
  } catch (...) {
    keep_for_ever(std::move(trial));  // the next one takes another
    throw;
  }
  if (!why_not.empty())
    std::fprintf(stderr, "accdp: nvCOMP's %s of %s is not used on GPU %d: %s\n", find_codec(codec)->name, name_of(type),
                 device, why_not.c_str());
  return works->emplace(key, why_not.empty()).first->second;
}

}  // namespace accdp
