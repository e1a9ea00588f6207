#pragma once
#include <cstddef>
#include <memory>

namespace accdp {

/// Memory that grows to the largest request and is then reused; the contents do not survive the next request.
/// Aligned for every type. Codecs keep one per thread.
class Scratch {
 public:
  std::byte* at_least(std::size_t bytes) {
    if (bytes > bytes_) {
      bytes_ = 0;  // stays true if the allocation throws
      memory_.reset();
      memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace accdp
