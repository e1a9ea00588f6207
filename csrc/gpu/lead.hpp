#pragma once
#include <cstddef>

#include "device/cuda.hpp"

namespace accdp {

/// How far the host is ahead of a stream. Drivers have room for some thousand operations of one, and keep who hands
/// over the next inside of that call until the device comes to it: there nobody looks whether it ever will, or hears of
/// Ctrl-C. So who waits for other ranks' devices waits before that, where waits are watched.
class Lead {
 public:
  /// Before so many operations more: where the lead would be more than twice kMost, until it is half of that.
  void grow(cudaStream_t stream, std::size_t operations) {
    operations_ += operations;
    if (operations_ <= kMost) return;
    if (mark_)
      synchronize(mark_);
    else
      mark_ = make_event();
    record(mark_, stream);
    operations_ = operations;
  }

 private:
  static constexpr std::size_t kMost = 250;
  std::size_t operations_ = 0;  // since the mark
  Event mark_;
};

}  // namespace accdp
