#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "codec/speeds.hpp"

namespace accdp {

/// What codecs take on one processor: measured when it is asked for, and kept in a file of the user's cache folder for
/// processes to come. Each model of processor has a file of its own: machines that differ may share the folder.
class SpeedTable {
 public:
  using Measure = std::function<CodecTimes(const CodecRow&, Datatype)>;
  /// processor: what the times hold for.
  SpeedTable(std::string processor, Measure measure) : processor_(std::move(processor)), measure_(std::move(measure)) {}

  CodecTimes get(const CodecRow& codec, Datatype type);

  /// The name of a processor's file in the cache folder.
  static std::string file_of(const std::string& processor);

 private:
  using Key = std::pair<std::string, std::string>;
  void load();
  void save() const;
  std::string first_line() const;

  const std::string processor_;
  const Measure measure_;
  std::mutex mutex_;
  bool read_ = false;
  std::string path_;
  std::map<Key, CodecTimes> times_;
};

/// The processor's model.
std::string host_processor();

}  // namespace accdp
