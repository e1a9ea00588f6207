// What the parts of the simulated runtime share: its books, its faults and its memory.
#pragma once
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "cudasim.hpp"

namespace cudasim {

struct Block {
  int fd = -1;  // -1: a mapping of another process's
  std::size_t bytes = 0;
  cudaMemoryType type = cudaMemoryTypeDevice;
  int device = 0;
  bool is_elsewhere = false;  // on another GPU
};

struct Range {
  std::uintptr_t first = 0, end = 0;
  auto operator<=>(const Range&) const = default;
};

struct Fault {
  cudaError_t code;
  int calls_left;  // until the one that fails; -1: all fail
};

struct State {
  std::recursive_mutex mutex;
  int devices = 1, first_device = 0, live = 0;
  std::map<const std::byte*, Block> blocks;
  std::atomic<unsigned long> releases = 0;  // of blocks, so far
  std::multiset<Range> in_use;              // by copies that are not done
  bool has_crashed = false;                 // nothing that the device had to do goes on
  std::map<std::string, Fault> faults;
  std::map<std::string, int> calls;
  std::set<int> contexts;        // by device
  std::set<const void*> loaded;  // kernels
  int late_loads = 0;
  std::size_t pinned = 0, most_pinned = 0;  // bytes
};
State& state();

/// One more object of the current device.
void begin_object();
void end_object();

/// Whatever needs a context makes the one of the thread's current device.
void use_context();
int device_in_use();  ///< by this thread
/// The error as the call's answer, which cudaGetLastError() tells, too.
cudaError_t answer(cudaError_t code);
/// is_unsafe: not allowed while any thread captures in the global mode.
cudaError_t fault(const char* call, bool is_unsafe = false);
#define SIM_FAULT(...) \
  if (const cudaError_t code_ = cudasim::fault(__VA_ARGS__); code_ != cudaSuccess) return code_

cudaError_t allocate(void** memory, std::size_t bytes, cudaMemoryType type);
cudaError_t release(void* memory);
/// Where an allocation with this address in it begins and ends; 0 and 0 if none has.
Range allocation_of(std::uintptr_t address);

/// A handle of 64 bytes, as all of CUDA's are.
cudaError_t export_memory(void* handle, void* memory);
cudaError_t import_memory(void** memory, const void* handle);
int gpu_of(const void* handle);  // what it is of, by its number among all processes

/// cuStreamWaitValue32.
int wait_for_value(cudaStream_t stream, std::uintptr_t address, std::uint32_t value, unsigned flags);

/// What frees memory, or ends an event that several processes have, waits for all work of the process first, as the
/// real one may.
void drain_all();

}  // namespace cudasim
