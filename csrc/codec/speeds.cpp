#include "codec/speeds.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <tuple>
#include <vector>

#include "base/deadline.hpp"
#include "base/settings.hpp"
#include "codec/crc32c.hpp"

namespace accdp {
namespace {

/// Floats as trained weights have them, in the datatype's bits. Integers as differences between versions are: most of
/// them small, one in four 0.
std::vector<std::byte> noise(Datatype type) {
  std::vector<std::byte> data(CodecTimes::kMost);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::geometric_distribution<int> small(0.25);
  const std::size_t width = element_bytes(type);
  for (std::size_t at = 0; at + width <= data.size(); at += width) {
    const float value = normal(random);
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    std::uint64_t word;
    if (type == Datatype::kBF16 || type == Datatype::kF16) {
      word = bits >> 16;  // of a bfloat16; for a measurement of speed it looks enough like a half
    } else if (type == Datatype::kF32 || type == Datatype::kC64) {
      word = bits;
    } else if (type == Datatype::kF64 || type == Datatype::kC128) {
      const double wide = value;
      std::memcpy(&word, &wide, 8);
    } else {
      word = static_cast<std::uint64_t>(small(random));
    }
    std::memcpy(data.data() + at, &word, std::min<std::size_t>(width, 8));
  }
  return data;
}

template <class Call>
double best_seconds(Call call) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {  // the first one also warms up
    const double began = processor_seconds();
    call();
    best = std::min(best, processor_seconds() - began);
  }
  return std::max(best, 1e-9);
}

/// A few of the elements again and again, for codecs that find repetitions and see none in noise.
void repeat_elements(std::vector<std::byte>& data, std::size_t width) {
  std::mt19937 random(2);
  for (std::size_t at = 16 * width; at + width <= data.size(); at += width)
    std::memcpy(data.data() + at, data.data() + random() % 16 * width, width);
}

/// Seconds to encode and decode the first bytes of some data, checksums included, as frames need them.
std::pair<double, double> time_both(const CodecRow& codec, const Encoding& how, ConstBytes data, Bytes stored,
                                    Bytes back) {
  std::size_t size = 0;
  const double encode = best_seconds([&] {
    size = codec.encode(how, data, stored);
    crc32c(size ? ConstBytes(stored).first(size) : data);
  });
  if (size == 0) return {encode, encode};
  const double decode = best_seconds([&] {
    crc32c(ConstBytes(stored).first(size));
    codec.decode(how.type, ConstBytes(stored).first(size), back.first(data.size()));
  });
  return {encode, decode};
}

CodecTimes measure(const CodecRow& codec, Datatype type) {
  std::vector<std::byte> data = noise(type);
  std::vector<std::byte> stored(data.size()), back(data.size());
  const Encoding how{type, 2e-4};
  // One that gives noise up at once is not fast.
  if (codec.encode(how, data, stored) == 0) repeat_elements(data, element_bytes(type));
  CodecTimes times;
  for (std::size_t i = 0; i < CodecTimes::kSizes; ++i)
    std::tie(times.encode[i], times.decode[i]) =
        time_both(codec, how, ConstBytes(data).first(CodecTimes::bytes_at(i)), stored, back);
  return times;
}

/// The file: one line per codec and datatype, "fpk.1 bfloat16" and eight numbers, after a line that names the
/// processor.
class SpeedTable {
 public:
  CodecTimes get(const CodecRow& codec, Datatype type) {
    std::lock_guard lock(mutex_);
    if (!read_) load();
    const Key key{std::string(codec.name) + "." + std::to_string(codec.format), name_of(type)};
    if (auto found = times_.find(key); found != times_.end()) return found->second;
    const CodecTimes times = measure(codec, type);
    times_[key] = times;
    save();
    return times;
  }

 private:
  using Key = std::pair<std::string, std::string>;

  void load() {
    read_ = true;
    path_ = cache_directory();
    if (path_.empty()) return;
    path_ += "/codec_speeds.txt";
    std::ifstream file(path_);
    std::string line;
    if (!std::getline(file, line) || line != processor()) return;
    Key key;
    CodecTimes times;
    while (file >> key.first >> key.second) {
      bool is_whole = true;
      for (double* seconds : {times.encode, times.decode})
        for (std::size_t i = 0; i < CodecTimes::kSizes; ++i) is_whole &= file >> seconds[i] && seconds[i] > 0;
      if (!is_whole) return;
      times_[key] = times;
    }
  }

  /// Whole file under another name first: many ranks may do this at once. A cache that cannot be written is none.
  void save() const {
    if (path_.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
    std::ostringstream unique;
    unique << path_ << "." << std::hex << std::random_device{}();
    {
      std::ofstream file(unique.str());
      file << processor() << "\n";
      for (const auto& [key, times] : times_) {
        file << key.first << " " << key.second;
        for (const double* seconds : {times.encode, times.decode})
          for (std::size_t i = 0; i < CodecTimes::kSizes; ++i) file << " " << seconds[i];
        file << "\n";
      }
    }
    std::filesystem::rename(unique.str(), path_, ignored);
    if (ignored) std::filesystem::remove(unique.str(), ignored);
  }

  static std::string processor() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("model name")) return "5 " + line;
    return "5 unknown processor";
  }

  std::mutex mutex_;
  bool read_ = false;
  std::string path_;
  std::map<Key, CodecTimes> times_;
};

}  // namespace

double CodecTimes::at(const double* seconds, std::size_t bytes) {
  std::size_t i = 1;  // between i - 1 and i, or beyond in a straight line
  while (i + 1 < kSizes && bytes > bytes_at(i)) ++i;
  const auto below = static_cast<double>(bytes_at(i - 1)), above = static_cast<double>(bytes_at(i));
  const double slope = (seconds[i] - seconds[i - 1]) / (above - below);
  return std::max(seconds[i - 1] + (static_cast<double>(bytes) - below) * slope, seconds[0] / 4);
}

CodecTimes codec_times(const CodecRow& codec, Datatype type) {
  static SpeedTable table;
  return table.get(codec, type);
}

CodecCost codec_speed(const CodecRow& codec, Datatype type) {
  const CodecTimes times = codec_times(codec, type);
  constexpr std::size_t kLast = CodecTimes::kSizes - 1;
  constexpr double kShare = static_cast<double>(CodecTimes::kLeast) / CodecTimes::kMost;
  return {1, CodecTimes::kMost / times.encode[kLast], CodecTimes::kMost / times.decode[kLast],
          std::max(0.0, times.encode[0] - times.encode[kLast] * kShare),
          std::max(0.0, times.decode[0] - times.decode[kLast] * kShare)};
}

}  // namespace accdp
