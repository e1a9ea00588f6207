#include "gpu/device_speeds.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/deadline.hpp"
#include "codec/speed_table.hpp"
#include "coll/device_tensors.hpp"
#include "gpu/codec_workshop.hpp"

namespace accdp {
namespace {

constexpr std::size_t kRunChunks = DeviceTensors::kRunBytes / CodecTimes::kMost;
constexpr int kLeastTimes = 3, kMostTimes = 9;
constexpr double kEnoughSeconds = 5e-3;  // for one of a table's numbers
constexpr double kNeverChosen = 1;       // byte per second: nobody chooses that

/// The least of several: other ranks' work on the same GPU, and this rank's own, is in some of them.
template <class Call>
double best_seconds(Call call) {
  double best = 1e9, spent = 0;
  for (int i = 0; i < kLeastTimes || (i < kMostTimes && spent < kEnoughSeconds); ++i) {
    const auto began = Clock::now();
    call();
    const double took = seconds_since(began);
    best = std::min(best, took);
    spent += took;
  }
  return std::max(best, 1e-9);
}

/// Runs of chunks, as a stream has them encoded and decoded; the tensors stay on the device.
class Trial {
 public:
  Trial(const CodecRow& codec, Datatype type)
      : codec_(codec), how_(speed_encoding(type)), tensor_(kRunChunks * CodecTimes::kMost), before_(make_stream()) {
    const std::vector<std::byte> data = speed_data(codec, type);
    for (std::size_t i = 0; i < kRunChunks; ++i)
      copy_async(tensor_.data() + i * data.size(), data.data(), data.size(), before_.get());
    synchronize(before_.get());
    workshop_.begin_after(before_.get());
    encode(CodecTimes::kMost);  // takes memory, loads kernels
    decode(CodecTimes::kMost);
  }

  /// kRunChunks chunks of so many bytes.
  void encode(std::size_t bytes) {
    std::vector<CodecWorkshop::Job> jobs;
    for (std::size_t i = 0; i < kRunChunks; ++i) jobs.push_back({place(i, bytes), &codec_, how_});
    const std::size_t beginning = workshop_.begin_encode(jobs);
    stored_ = workshop_.encoded(beginning);  // stays until the next one begins
    workshop_.end_encode(beginning);
  }
  /// What was encoded last; what did not become smaller travels as it is.
  void decode(std::size_t bytes) {
    for (std::size_t i = 0; i < kRunChunks; ++i)
      if (!stored_[i].empty()) workshop_.decode(&codec_, how_.type, stored_[i], place(i, bytes));
    workshop_.finish();
  }

 private:
  CodecWorkshop::Place place(std::size_t chunk, std::size_t bytes) const {
    return {{{tensor_.data() + chunk * bytes, nullptr, bytes}}, how_.type};
  }

  const CodecRow& codec_;
  const Encoding how_;
  DeviceBuffer tensor_;
  Stream before_;
  CodecWorkshop workshop_;
  std::vector<ConstBytes> stored_;
};

CodecTimes measure(const CodecRow& codec, Datatype type) {
  Trial trial(codec, type);
  CodecTimes times;
  for (std::size_t i = 0; i < CodecTimes::kSizes; ++i) {
    const std::size_t bytes = CodecTimes::bytes_at(i);
    times.encode[i] = best_seconds([&] { trial.encode(bytes); });
    times.decode[i] = best_seconds([&] { trial.decode(bytes); });
  }
  return times;
}

SpeedTable& table_of(int device) {
  static std::map<int, SpeedTable> tables;
  if (const auto found = tables.find(device); found != tables.end()) return found->second;
  return tables.try_emplace(device, gpu_model(device) + " beside " + host_processor(), measure).first->second;
}

}  // namespace

CodecCost device_codec_speed(int device, const CodecRow& codec, Datatype type) {
  static std::mutex mutex;
  static std::set<std::tuple<int, CodecId, Datatype>> failed;
  const std::tuple key{device, codec.id, type};
  std::lock_guard lock(mutex);
  const auto leave_out = [&](const Error& error) {
    std::fprintf(stderr, "accdp: codec=auto leaves out %s of %s on this GPU, where it fails: %s\n", codec.name,
                 name_of(type), error.what());
    failed.insert(key);
  };
  if (!failed.contains(key)) {
    try {
      return table_of(device).get(codec, type).cost(kRunChunks);
    } catch (const CudaError& error) {
      leave_out(error);
    } catch (const CodecError& error) {
      leave_out(error);
    }
  }
  return {1, kNeverChosen, kNeverChosen};
}

}  // namespace accdp
