// What codecs take, measured by one of many processes that want to know it at the same time.
#include "codec/speed_table.hpp"

#include <sys/file.h>

#include <filesystem>
#include <fstream>

#include "base/settings.hpp"
#include "codec/codec.hpp"
#include "ranks.hpp"

using namespace accdp;
namespace fs = std::filesystem;

namespace {

constexpr int kRanks = 4;
constexpr Datatype kFloat = Datatype::kF32, kDouble = Datatype::kF64;
const CodecRow *const kFpk = find_codec(CodecId::kFpk), *const kQpk = find_codec(CodecId::kQpk);

constexpr const char* kProcessor = "model name\t: A processor (R) / 2";

struct Measurements {
  std::atomic<int> now{0}, in_all{0};
};

/// Notes its measurements, which take long enough for every process to want one meanwhile.
SpeedTable table(Measurements& measurements, const char* processor = kProcessor) {
  return {processor, [&measurements](const CodecRow&, Datatype) {
            CHECK(measurements.now.fetch_add(1) == 0);
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            CodecTimes times;
            const int number = ++measurements.in_all;
            for (double* seconds : {times.encode, times.decode}) std::fill_n(seconds, CodecTimes::kSizes, number);
            --measurements.now;
            return times;
          }};
}

/// All ask for two codecs, in different orders.
void one_process_measures() {
  Shared<Measurements> measurements;
  Shared<std::array<double, 2 * kRanks>> seen;
  CHECK(fork_ranks(kRanks, [&](int rank) {
    SpeedTable speeds = table(*measurements);
    for (const int i : {rank % 2, 1 - rank % 2})
      (*seen)[2 * rank + i] = speeds.get(i ? *kQpk : *kFpk, kFloat).encode[0];
  }));
  CHECK(measurements->in_all == 2);
  for (int rank = 1; rank < kRanks; ++rank)
    for (const int i : {0, 1}) CHECK((*seen)[2 * rank + i] == (*seen)[i]);
  CHECK((*seen)[0] != (*seen)[1]);

  SpeedTable later = table(*measurements);
  CHECK(later.get(*kFpk, kFloat).encode[0] == (*seen)[0] && later.get(*kQpk, kFloat).encode[0] == (*seen)[1]);
  CHECK(measurements->in_all == 2);
}

/// Machines that share a folder, as one home on many nodes, and differ: none loses its times to another.
void each_model_keeps_its_times() {
  Shared<Measurements> measurements;
  for (int turn = 0; turn < 2; ++turn)
    for (const char* processor : {"one model", "another model"}) table(*measurements, processor).get(*kFpk, kFloat);
  CHECK(measurements->in_all == 2);
}

/// The rest of a job does not wait for a process that was stopped while it measured, nor on a folder without locks.
void nobody_waits_for_ever() {
  Shared<Measurements> measurements;
  const int stopped = open((cache_directory() + "/" + SpeedTable::file_of(kProcessor) + ".lock").c_str(), O_RDWR);
  CHECK(stopped >= 0 && flock(stopped, LOCK_EX) == 0);
  const auto began = std::chrono::steady_clock::now();
  CHECK(table(*measurements).get(*kFpk, kDouble).encode[0] == 1);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
  close(stopped);
}

/// A file that was cut off, whose times were measured in another way, or are none, is as none.
void damaged_files() {
  Shared<Measurements> measurements;
  const std::string path = cache_directory() + "/" + SpeedTable::file_of(kProcessor);
  table(*measurements).get(*kFpk, kFloat);
  std::ifstream file(path);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  const std::size_t first = whole.find('\n'), end = whole.rfind("end");
  CHECK(whole.starts_with("6 ") && end != std::string::npos);
  int wanted = measurements->in_all;
  for (const std::string& text : {whole.substr(0, end - 2), whole.substr(0, end), "5" + whole.substr(1),
                                  whole.substr(0, first) + " more" + whole.substr(first),
                                  whole.substr(0, end - 2) + "0\nend\n", whole.substr(0, end - 3) + " -1\nend\n"}) {
    std::ofstream(path) << text;
    CHECK(table(*measurements).get(*kFpk, kFloat).encode[0] == ++wanted);
  }
  fs::remove(path);
  fs::create_directory(path);
  CHECK(table(*measurements).get(*kFpk, kFloat).encode[0] == ++wanted);
  fs::remove(path);
}

void without_a_folder(const char* folder) {
  set_setting("ACCDP_CACHE_DIR", folder);
  Shared<Measurements> measurements;
  SpeedTable speeds = table(*measurements);
  for (int turn = 0; turn < 2; ++turn) CHECK(speeds.get(*kFpk, kFloat).encode[0] == 1);
}

}  // namespace

int main() {
  const std::string folder = (fs::temp_directory_path() / ("accdp-test-speeds-" + std::to_string(getpid()))).string();
  set_setting("ACCDP_CACHE_DIR", folder);
  one_process_measures();
  each_model_keeps_its_times();
  nobody_waits_for_ever();
  damaged_files();
  fs::remove_all(folder);
  without_a_folder("-");
  without_a_folder("/proc/none");  // none can be made there
}
