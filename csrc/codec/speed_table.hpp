#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "codec/speeds.hpp"

namespace accdp {

/// What codecs take on one processor: measured when it is asked for, and kept in a file of the user's cache folder for
/// processes to come.
class SpeedTable {
 public:
  using Measure = std::function<CodecTimes(const CodecRow&, Datatype)>;
  /// processor: what the times hold for; a file of another one is not read. file: its name in the cache folder.
  SpeedTable(std::string file, std::string processor, Measure measure)
      : file_(std::move(file)), processor_(std::move(processor)), measure_(std::move(measure)) {}

  CodecTimes get(const CodecRow& codec, Datatype type);

 private:
  using Key = std::pair<std::string, std::string>;
  void load();
  void save() const;
  std::string first_line() const;

  const std::string file_, processor_;
  const Measure measure_;
  std::mutex mutex_;
  bool read_ = false;
  std::string path_;
  std::map<Key, CodecTimes> times_;
};

/// The processor's model.
std::string host_processor();

}  // namespace accdp
