// The file: one line per codec and datatype, "fpk.1 bfloat16" and eight numbers, after a line that names the processor
// and before one that says that it is whole.
#include "codec/speed_table.hpp"

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "base/settings.hpp"

namespace accdp {

CodecTimes SpeedTable::get(const CodecRow& codec, Datatype type) {
  std::lock_guard lock(mutex_);
  if (!read_) load();
  const Key key{std::string(codec.name) + "." + std::to_string(codec.format), name_of(type)};
  if (auto found = times_.find(key); found != times_.end()) return found->second;
  const CodecTimes times = measure_(codec, type);
  times_[key] = times;
  save();
  return times;
}

/// Another number for times that are measured in another way.
std::string SpeedTable::first_line() const { return "6 " + processor_; }

constexpr const char* kLastLine = "end";

void SpeedTable::load() {
  read_ = true;
  path_ = cache_directory();
  if (path_.empty()) return;
  path_ += "/" + file_;
  std::ifstream file(path_);
  std::string line;
  if (!std::getline(file, line) || line != first_line()) return;
  Key key;
  CodecTimes times;
  std::map<Key, CodecTimes> found;
  while (file >> key.first && key.first != kLastLine) {
    bool is_good = static_cast<bool>(file >> key.second);
    for (double* seconds : {times.encode, times.decode})
      for (std::size_t i = 0; i < CodecTimes::kSizes; ++i) is_good &= file >> seconds[i] && seconds[i] > 0;
    if (!is_good) return;
    found[key] = times;
  }
  if (file) times_.merge(found);
}

/// Whole file under another name first: many ranks may do this at once. A cache that cannot be written is none.
void SpeedTable::save() const {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  std::ostringstream unique;
  unique << path_ << "." << std::hex << std::random_device{}();
  {
    std::ofstream file(unique.str());
    file << first_line() << "\n";
    for (const auto& [key, times] : times_) {
      file << key.first << " " << key.second;
      for (const double* seconds : {times.encode, times.decode})
        for (std::size_t i = 0; i < CodecTimes::kSizes; ++i) file << " " << seconds[i];
      file << "\n";
    }
    file << kLastLine << "\n";
    file.close();
    if (!file) {  // a full disk: what there is, is better
      std::filesystem::remove(unique.str(), ignored);
      return;
    }
  }
  std::filesystem::rename(unique.str(), path_, ignored);
  if (ignored) std::filesystem::remove(unique.str(), ignored);
}

std::string host_processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line;
  return "unknown processor";
}

}  // namespace accdp
