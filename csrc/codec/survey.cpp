#include "codec/survey.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <sstream>

#include "base/settings.hpp"

namespace accdp {
namespace {

constexpr std::size_t kProbeBytes = 256 << 10;

/// Floats as trained weights have them, in the datatype's bits. Integers as differences between versions are: most of
/// them small, one in four 0.
std::vector<std::byte> noise(Datatype type) {
  std::vector<std::byte> data(kProbeBytes);
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
    const auto began = std::chrono::steady_clock::now();
    call();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  return std::max(best, 1e-9);
}

/// A few of the elements again and again, for codecs that find repetitions and see none in noise.
void repeat_elements(std::vector<std::byte>& data, std::size_t width) {
  std::mt19937 random(2);
  for (std::size_t at = 16 * width; at + width <= data.size(); at += width)
    std::memcpy(data.data() + at, data.data() + random() % 16 * width, width);
}

CodecCost measure(const CodecRow& codec, Datatype type) {
  std::vector<std::byte> data = noise(type);
  std::vector<std::byte> stored(data.size()), back(data.size());
  // One that gives noise up at once is not fast.
  if (codec.encode({type, 2e-4}, data, stored) == 0) repeat_elements(data, element_bytes(type));
  std::size_t size = 0;
  const double encode = best_seconds([&] { size = codec.encode({type, 2e-4}, data, stored); });
  double decode = encode;
  if (size) decode = best_seconds([&] { codec.decode(type, ConstBytes(stored).first(size), back); });
  return {1, kProbeBytes / encode, kProbeBytes / decode};
}

/// The file: one line per codec and datatype, "fpk.1 bf16 encode decode", after a line that names the processor.
class SpeedTable {
 public:
  CodecCost get(const CodecRow& codec, Datatype type) {
    std::lock_guard lock(mutex_);
    if (!read_) load();
    const Key key{std::string(codec.name) + "." + std::to_string(codec.format), name_of(type)};
    if (auto found = speeds_.find(key); found != speeds_.end()) return found->second;
    const CodecCost cost = measure(codec, type);
    speeds_[key] = cost;
    save();
    return cost;
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
    CodecCost cost{1, 0, 0};
    while (file >> key.first >> key.second >> cost.encode_bytes_per_s >> cost.decode_bytes_per_s)
      if (cost.encode_bytes_per_s > 0 && cost.decode_bytes_per_s > 0) speeds_[key] = cost;
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
      for (const auto& [key, cost] : speeds_)
        file << key.first << " " << key.second << " " << cost.encode_bytes_per_s << " " << cost.decode_bytes_per_s
             << "\n";
    }
    std::filesystem::rename(unique.str(), path_, ignored);
    if (ignored) std::filesystem::remove(unique.str(), ignored);
  }

  static std::string processor() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("model name")) return "3 " + line;
    return "3 unknown processor";
  }

  std::mutex mutex_;
  bool read_ = false;
  std::string path_;
  std::map<Key, CodecCost> speeds_;
};

constexpr double kFasterOnSomeData = 3;
constexpr std::size_t kEnoughToTime = 4;

/// Zeros and small differences go faster than noise, or slower: the samples tell. Their median, because one of them
/// may have been interrupted. Decoding is taken to change alike.
void adjust(CodecCost& cost, std::vector<double>& speeds) {
  std::nth_element(speeds.begin(), speeds.begin() + static_cast<long>(speeds.size() / 2), speeds.end());
  const double factor = std::clamp(speeds[speeds.size() / 2] / cost.encode_bytes_per_s, 0.1, 8.0);
  cost.encode_bytes_per_s *= factor;
  cost.decode_bytes_per_s *= factor;
}

}  // namespace

CodecCost codec_speed(const CodecRow& codec, Datatype type) {
  static SpeedTable table;
  return table.get(codec, type);
}

std::vector<Candidate> survey(std::span<const ConstBytes> samples, const Encoding& how, double pace) {
  std::vector<Candidate> found;
  std::vector<std::byte> room;
  for (const CodecRow* codec : codec_rows()) {
    if (!codec->takes(how.type) || (codec->lossy && !(how.bound > 0)) || !codec->why_not().empty()) continue;
    CodecCost cost = codec_speed(*codec, how.type);
    if (kFasterOnSomeData * std::min(cost.encode_bytes_per_s, cost.decode_bytes_per_s) < pace) continue;
    std::size_t before = 0, after = 0;
    std::vector<double> speeds;
    for (const ConstBytes sample : samples) {
      room.resize(std::max(room.size(), sample.size()));
      const auto began = std::chrono::steady_clock::now();
      const std::size_t size = codec->encode(how, sample, room);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
      speeds.push_back(static_cast<double>(sample.size()) / std::max(took.count(), 1e-9));
      before += sample.size();
      after += size ? size : sample.size();
    }
    if (after >= before) continue;
    if (speeds.size() >= kEnoughToTime) adjust(cost, speeds);
    cost.ratio = static_cast<double>(before) / static_cast<double>(after);
    found.push_back({codec, cost});
  }
  return found;
}

}  // namespace accdp
