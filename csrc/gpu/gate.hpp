#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

#include "device/cuda.hpp"

namespace accdp {

/// Holds a stream back from its closing to its opening, which comes at the latest with the end of this. By a word that
/// the stream waits for: a function of the host in its place would keep drivers from more than this stream.
class Gate {
 public:
  static constexpr std::chrono::seconds kMostClosed{5};

  explicit Gate(cudaStream_t stream) : stream_(stream) {}
  Gate(const Gate&) = delete;
  ~Gate() {
    open();
    drain(stream_);
  }
  /// word: of page-locked memory, which stays where the device may never have done with it.
  void prepare(std::byte* word) { word_ = reinterpret_cast<std::uint32_t*>(word); }
  void close() {
    word().store(kClosed);
    // In the end it opens by itself: the driver may have the thread that would open it wait for the stream.
    opener_ = std::jthread([this](const std::stop_token& asked) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, asked, kMostClosed, [] { return false; });
      word().store(kOpen);
    });
    wait_for_value(stream_, word_, kOpen);
  }
  void open() { opener_ = {}; }

 private:
  static constexpr std::uint32_t kClosed = 0, kOpen = 1;
  std::atomic_ref<std::uint32_t> word() const { return std::atomic_ref(*word_); }

  cudaStream_t stream_;
  std::uint32_t* word_ = nullptr;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread opener_;  // last: it uses the others
};

}  // namespace accdp
