#pragma once
// Any bits in memory of the device, with guards around them.
#include <algorithm>
#include <cstring>

#include "codec_data.hpp"
#include "cudasim.hpp"
#include "device/cuda.hpp"

using namespace accdp;
using cudasim::kGuard;

constexpr std::byte kUntouched{0xa5};

/// Bits that mean anything to any type.
inline Buffer any_bits(std::size_t bytes, std::uint64_t seed) {
  Random random{seed};
  Buffer data(bytes);
  for (std::byte& one : data) one = static_cast<std::byte>(random.next() >> 8);
  return data;
}

/// Memory of the device at `shift` bytes from a multiple of 16.
class OnDevice {
 public:
  OnDevice(const Buffer& values, std::size_t shift)
      : bytes_(values.size()), shift_(shift), room_(shift + bytes_ + kGuard) {
    std::memset(room_.data(), static_cast<int>(kUntouched), room_.bytes());
    std::copy(values.begin(), values.end(), data());
  }
  std::byte* data() const { return room_.data() + shift_; }
  /// What is there, once the stream is done; nothing around it has been written.
  Buffer values(cudaStream_t stream) const {
    synchronize(stream);
    const auto is_untouched = [](std::byte one) { return one == kUntouched; };
    CHECK(std::all_of(room_.data(), data(), is_untouched));
    CHECK(std::all_of(data() + bytes_, data() + bytes_ + kGuard, is_untouched));
    Buffer found(bytes_);
    std::copy_n(data(), bytes_, found.begin());
    return found;
  }

 private:
  std::size_t bytes_, shift_;
  DeviceBuffer room_;
};
