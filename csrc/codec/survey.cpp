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

/// Floats as trained weights have them, in the datatype's bits; other types get small numbers.
std::vector<std::byte> noise(Datatype type) {
  std::vector<std::byte> data(kProbeBytes);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  const std::size_t width = element_bytes(type);
  for (std::size_t at = 0; at + width <= data.size(); at += width) {
    const float value = normal(random);
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    // Any 16 bits of a float look enough like a half for a measurement of speed.
    const bool is_half = type == Datatype::kBF16 || type == Datatype::kF16;
    std::uint64_t word = is_half ? bits >> 16 : type == Datatype::kF32 || type == Datatype::kC64 ? bits : bits >> 28;
    if (type == Datatype::kF64 || type == Datatype::kC128) {
      const double wide = value;
      std::memcpy(&word, &wide, 8);
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

CodecCost measure(const CodecRow& codec, Datatype type) {
  const std::vector<std::byte> data = noise(type);
  std::vector<std::byte> stored(data.size()), back(data.size());
  std::size_t size = 0;
  const double encode = best_seconds([&] { size = codec.encode({type, 2e-4}, data, stored); });
  double decode = encode;  // of data that it cannot make smaller nothing is known; it will not be chosen for it
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
      if (line.starts_with("model name")) return "1 " + line;
    return "1 unknown processor";
  }

  std::mutex mutex_;
  bool read_ = false;
  std::string path_;
  std::map<Key, CodecCost> speeds_;
};

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
    if (std::min(cost.encode_bytes_per_s, cost.decode_bytes_per_s) < pace) continue;
    std::size_t before = 0, after = 0;
    for (const ConstBytes sample : samples) {
      room.resize(std::max(room.size(), sample.size()));
      const std::size_t size = codec->encode(how, sample, room);
      before += sample.size();
      after += size ? size : sample.size();
    }
    if (after >= before) continue;
    cost.ratio = static_cast<double>(before) / static_cast<double>(after);
    found.push_back({codec, cost});
  }
  return found;
}

}  // namespace accdp
