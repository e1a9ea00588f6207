#pragma once
#include <cmath>

#include "coll/stream_codec.hpp"

namespace accdp {

/// Which codecs allreduces of like tensors chose. The gradients of a training step are like those of the step before,
/// so not every one of them has to be tried on samples again. A choice holds for some operations, as long as it makes
/// the data as small as it did at first.
class ChoiceMemo {
 public:
  /// What was chosen for tensors like these (`key`: all that a choice depends on but the data), or null: choose anew.
  const StreamCodec::Choices* find(std::uint64_t key) {
    const auto found = kept_.find(key);
    if (found == kept_.end()) return nullptr;
    if (found->second.left-- > 0) return &found->second.codecs;
    kept_.erase(found);
    return nullptr;
  }
  void keep(std::uint64_t key, const StreamCodec::Choices& codecs) {
    if (kept_.size() >= kMost) kept_.clear();
    kept_[key] = {codecs, 0, kOperations};
  }
  /// How small the data became.
  void ran(std::uint64_t key, double ratio) {
    const auto found = kept_.find(key);
    if (found == kept_.end()) return;
    if (found->second.ratio == 0) found->second.ratio = ratio;
    if (std::abs(ratio / found->second.ratio - 1) > kLike) kept_.erase(found);
  }

 private:
  struct Kept {
    StreamCodec::Choices codecs;
    double ratio;  // 0: not known yet
    int left;      // operations
  };
  static constexpr int kOperations = 16;
  static constexpr std::size_t kMost = 256;
  static constexpr double kLike = 0.1;
  std::map<std::uint64_t, Kept> kept_;
};

}  // namespace accdp
