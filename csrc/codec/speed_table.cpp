// The file: one line per codec and datatype, "fpk.1 bfloat16" and eight numbers, after a line that names the processor
// and before one that says that it is whole.
#include "codec/speed_table.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "base/deadline.hpp"
#include "base/settings.hpp"

namespace accdp {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// Processes of one cache folder measure one after another: at once, each would find the others' work in its times.
class Turn {
 public:
  /// Goes on without one after kPatience, behind a process that was stopped, and where files cannot be locked.
  explicit Turn(const std::string& path) {
    if (path.empty()) return;
    file_ = open((path + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    const auto end = Clock::now() + kPatience;
    while (file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK && Clock::now() < end)
      std::this_thread::sleep_for(20ms);  // each may be a question to a file server
  }
  ~Turn() {
    if (file_ < 0) return;
    flock(file_, LOCK_UN);  // children forked meanwhile have the file, too
    close(file_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  static constexpr auto kPatience = 2s;
  int file_ = -1;
};

/// What a file of the cache holds; nothing of what is no file, such as a pipe that somebody has put there, to which
/// nobody writes.
std::string contents_of(const std::string& path) {
  constexpr std::size_t kMost = 1 << 20;
  std::string text(kMost, '\0');
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return {};
  struct stat found{};
  std::size_t bytes = 0;
  if (fstat(file, &found) == 0 && S_ISREG(found.st_mode))
    for (ssize_t more; (more = read(file, text.data() + bytes, kMost - bytes)) > 0;) bytes += more;
  close(file);
  text.resize(bytes);
  return text;
}

}  // namespace

CodecTimes SpeedTable::get(const CodecRow& codec, Datatype type) {
  std::lock_guard lock(mutex_);
  const Key key{std::string(codec.name) + "." + std::to_string(codec.format), name_of(type)};
  if (!read_) load();
  if (auto found = times_.find(key); found != times_.end()) return found->second;
  const Turn turn(path_);
  load();  // what others measured meanwhile
  if (auto found = times_.find(key); found != times_.end()) return found->second;
  const CodecTimes times = measure_(codec, type);
  times_[key] = times;
  save();
  return times;
}

std::string SpeedTable::file_of(const std::string& processor) {
  std::string name = processor;
  std::ranges::replace_if(name, [](unsigned char c) { return !std::isalnum(c) && c != '.'; }, '_');
  return "codec_speeds." + name + ".txt";
}

/// Another number for times that are measured in another way.
std::string SpeedTable::first_line() const { return "6 " + processor_; }

constexpr const char* kLastLine = "end";

void SpeedTable::load() {
  read_ = true;
  const std::string folder = cache_directory();
  if (folder.empty()) return;
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  path_ = folder + "/" + file_of(processor_);
  std::istringstream file(contents_of(path_));
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

/// Whole file under another name first: others read it at any time. A cache that cannot be written is none.
void SpeedTable::save() const {
  if (path_.empty()) return;
  std::error_code ignored;
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
      fs::remove(unique.str(), ignored);
      return;
    }
  }
  fs::rename(unique.str(), path_, ignored);
  if (ignored) fs::remove(unique.str(), ignored);
}

std::string host_processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string numbers;  // of Arm's, which have no name there
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line;
    if (numbers.empty() ? line.starts_with("CPU implementer") : line.starts_with("CPU part")) numbers += line;
    if (numbers.find("CPU part") != std::string::npos) break;
  }
  return numbers.empty() ? "unknown processor" : numbers;
}

}  // namespace accdp
