// See cuda_runtime.h. Memory is a memfd; a handle names it as process and file number, and the opener finds it in
// /proc/<process>/fd.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "sim_state.hpp"

using cudasim::Block, cudasim::state, cudasim::answer, cudasim::fault;

namespace {

std::atomic<std::size_t> g_largest_allocation{SIZE_MAX}, g_bytes_from_elsewhere{0};
std::atomic<bool> g_capturing{false}, g_capturing_elsewhere{false};
std::atomic<int> g_island_gpus{0}, g_capability{90}, g_driver{CUDART_VERSION};
std::atomic<bool> g_has_garbled_peers{false};
std::atomic<const std::atomic<bool>*> g_may_read{nullptr};
thread_local int g_device = 0;
thread_local bool g_is_bound = false;  // the thread uses its device
thread_local cudaStreamCaptureMode g_capture_mode = cudaStreamCaptureModeGlobal;
thread_local cudaError_t g_last_error = cudaSuccess;

struct Address {
  int pid, fd;
  std::uint64_t bytes;
  int device, gpu;
};

/// With a page behind it that nobody may touch, so that what leaves one block is not in the next.
std::size_t room_of(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  static const bool has_guards = !std::getenv("CUDASIM_SIDE_BY_SIDE");  // of a test that wants neighbours
  return (bytes + page - 1) / page * page + (has_guards ? page : 0);
}
void* map(int fd, std::size_t bytes) {
  void* const room = mmap(nullptr, room_of(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  if (mmap(room, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED) return room;
  munmap(room, room_of(bytes));
  return nullptr;
}

/// Nobody may count on zeros. Written, not stored: whoever uses little of a block has few page faults then.
bool fill(int fd, std::size_t bytes) {
  static const std::vector<std::byte> pattern(std::size_t{1} << 20, std::byte{0xa5});
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t written = pwrite(fd, pattern.data(), std::min(bytes - at, pattern.size()), static_cast<off_t>(at));
    if (written <= 0) return false;
    at += static_cast<std::size_t>(written);
  }
  return true;
}

using Found = std::map<const std::byte*, Block>::const_iterator;
Found find_block(const void* pointer) {
  const auto* at = static_cast<const std::byte*>(pointer);
  auto found = state().blocks.upper_bound(at);
  if (found == state().blocks.begin()) return state().blocks.end();
  --found;
  return at < found->first + found->second.bytes ? found : state().blocks.end();
}
const Block* block_of(const void* pointer) {
  const Found found = find_block(pointer);
  return found == state().blocks.end() ? nullptr : &found->second;
}
/// Whether so many bytes from there on leave the allocation that they begin in.
bool overruns(const void* pointer, std::size_t bytes) {
  const Found found = find_block(pointer);
  const auto* at = static_cast<const std::byte*>(pointer);
  return found != state().blocks.end() && found->second.bytes - (at - found->first) < bytes;
}
cudasim::Range range_of(const void* pointer, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(pointer);
  return {first, first + bytes};
}
/// What frees memory may wait for all work of the process, but CUDA does not promise it.
void check_unused(const void* memory) {
  std::lock_guard lock(state().mutex);
  const Block* const block = block_of(memory);
  if (!block || state().has_crashed) return;
  const cudasim::Range freed = range_of(memory, block->bytes);
  for (const cudasim::Range& used : state().in_use) {
    if (used.first >= freed.end || used.end <= freed.first) continue;
    std::fprintf(stderr, "cudasim: memory was freed before what a stream copies there, or from there\n");
    std::abort();
  }
}

}  // namespace

namespace cudasim {

State& state() {
  static State* const it = new State;  // never destroyed: owners may outlive main()
  return *it;
}

void begin_object() {
  g_is_bound = true;
  std::lock_guard lock(state().mutex);
  state().contexts.insert(g_device);
  ++state().live;
}
void end_object() {
  std::lock_guard lock(state().mutex);
  --state().live;
}

int device_in_use() { return g_device; }

cudaError_t answer(cudaError_t code) {
  if (code != cudaSuccess) g_last_error = code;
  return code;
}

void use_context() {
  std::lock_guard lock(state().mutex);
  if (state().devices == 0) return;
  state().contexts.insert(g_device);
  g_is_bound = true;
}

cudaError_t fault(const char* call, bool is_unsafe) {
  static const std::set<std::string_view> need_none{"cudaGetDeviceCount", "cudaGetDevice", "cudaPointerGetAttributes"};
  if (!need_none.contains(call)) use_context();
  std::lock_guard lock(state().mutex);
  ++state().calls[call];
  if (state().devices == 0) return answer(cudaErrorNoDevice);
  if (is_unsafe && g_capturing_elsewhere && g_capture_mode != cudaStreamCaptureModeRelaxed)
    return answer(cudaErrorStreamCaptureUnsupported);
  const auto found = state().faults.find(call);
  if (found == state().faults.end()) return cudaSuccess;
  Fault& it = found->second;
  if (it.calls_left > 1) return --it.calls_left, cudaSuccess;
  const cudaError_t code = it.code;
  if (it.calls_left == 1) state().faults.erase(found);
  if (code == cudaErrorLaunchFailure) state().has_crashed = true;
  return answer(code);
}
cudaError_t allocate(void** memory, std::size_t bytes, cudaMemoryType type) {
  std::lock_guard lock(state().mutex);
  const std::size_t mapped = std::max<std::size_t>(bytes, 1);
  const int fd = memfd_create("cudasim", MFD_CLOEXEC);
  if (fd < 0 || !fill(fd, mapped) || !(*memory = map(fd, mapped))) {
    if (fd >= 0) close(fd);
    return answer(cudaErrorMemoryAllocation);
  }
  state().blocks[static_cast<std::byte*>(*memory)] = {fd, mapped, type, g_device};
  if (type == cudaMemoryTypeHost) state().most_pinned = std::max(state().most_pinned, state().pinned += mapped);
  begin_object();
  return cudaSuccess;
}

cudaError_t release(void* memory) {
  if (!memory) return cudaSuccess;
  std::lock_guard lock(state().mutex);
  const auto found = state().blocks.find(static_cast<std::byte*>(memory));
  if (found == state().blocks.end()) return answer(cudaErrorInvalidValue);
  munmap(memory, room_of(found->second.bytes));
  if (found->second.fd >= 0) close(found->second.fd);
  if (found->second.type == cudaMemoryTypeHost) state().pinned -= found->second.bytes;
  state().blocks.erase(found);
  ++state().releases;
  end_object();
  return cudaSuccess;
}

Range allocation_of(std::uintptr_t address) {
  std::lock_guard lock(state().mutex);
  const Found found = find_block(reinterpret_cast<const void*>(address));
  if (found == state().blocks.end()) return {};
  const auto first = reinterpret_cast<std::uintptr_t>(found->first);
  return {first, first + found->second.bytes};
}

cudaError_t export_memory(void* handle, void* memory) {
  std::lock_guard lock(state().mutex);
  const auto found = state().blocks.find(static_cast<std::byte*>(memory));
  if (found == state().blocks.end() || found->second.fd < 0) return answer(cudaErrorInvalidValue);
  const Block& it = found->second;
  const Address address{getpid(), it.fd, it.bytes, it.device, state().first_device + it.device};
  static_assert(sizeof address <= sizeof(cudaIpcMemHandle_t) && sizeof address <= sizeof(cudaIpcEventHandle_t));
  std::memcpy(handle, &address, sizeof address);
  return cudaSuccess;
}

int gpu_of(const void* handle) {
  Address address;
  std::memcpy(&address, handle, sizeof address);
  return address.gpu;
}

cudaError_t import_memory(void** memory, const void* handle) {
  Address address;
  std::memcpy(&address, handle, sizeof address);
  if (address.pid == getpid()) return answer(cudaErrorInvalidResourceHandle);  // as the real one
  const int island = g_island_gpus;
  if (island > 0 && address.gpu / island != (state().first_device + g_device) / island)
    return answer(cudaErrorPeerAccessUnsupported);
  const std::string path = "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.fd);
  const bool is_elsewhere = address.gpu != state().first_device + g_device;
  const bool is_garbled = is_elsewhere && g_has_garbled_peers;
  const int fd = is_garbled ? memfd_create("cudasim", MFD_CLOEXEC) : open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 || (is_garbled && !fill(fd, address.bytes))) return answer(cudaErrorMapBufferObjectFailed);
  *memory = map(fd, address.bytes);
  close(fd);
  if (!*memory) return answer(cudaErrorMapBufferObjectFailed);
  std::lock_guard lock(state().mutex);
  state().blocks[static_cast<std::byte*>(*memory)] = {-1, address.bytes, cudaMemoryTypeDevice, address.device,
                                                      is_elsewhere};
  begin_object();
  return cudaSuccess;
}

void set_devices(int count, int first) {
  state().devices = count;
  state().first_device = first;
}
void set_gpu(int capability, int driver) {
  g_capability = capability;
  g_driver = driver;
}
void fail(const char* call, cudaError_t code, int nth) { state().faults[call] = {code, nth}; }
void fail_always(const char* call, cudaError_t code) { state().faults[call] = {code, -1}; }
void set_garbled_peers(bool garbled) { g_has_garbled_peers = garbled; }
void set_islands(int gpus) { g_island_gpus = gpus; }
void hold_reads(const std::atomic<bool>& until) { g_may_read = &until; }
void set_largest_allocation(std::size_t bytes) { g_largest_allocation = bytes; }
void set_capturing(bool capturing) { g_capturing = capturing; }
void set_capturing_elsewhere(bool capturing) { g_capturing_elsewhere = capturing; }
std::size_t bytes_from_other_gpus() { return g_bytes_from_elsewhere; }
bool has_context(int device) {
  std::lock_guard lock(state().mutex);
  return state().contexts.contains(device);
}
cudaError_t load(const void* kernel) {
  SIM_FAULT("cudaFuncGetAttributes");
  std::lock_guard lock(state().mutex);
  state().loaded.insert(kernel);
  return cudaSuccess;
}
void note_launch(const void* kernel) {
  std::lock_guard lock(state().mutex);
  if (state().loaded.insert(kernel).second) ++state().late_loads;
}
int late_loads() {
  std::lock_guard lock(state().mutex);
  return state().late_loads;
}
int calls(const char* call) {
  std::lock_guard lock(state().mutex);
  return state().calls[call];
}
std::size_t pinned_bytes() {
  std::lock_guard lock(state().mutex);
  return state().pinned;
}
std::size_t most_pinned_bytes() {
  std::lock_guard lock(state().mutex);
  return state().most_pinned;
}
void forget_most_pinned() {
  std::lock_guard lock(state().mutex);
  state().most_pinned = state().pinned;
}
int live_objects() {
  std::lock_guard lock(state().mutex);
  return state().live;
}

}  // namespace cudasim

// ---- errors and devices --------------------------------------------------------------------------------------------

const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorMemoryAllocation ? "out of memory" : "simulated error";
}
const char* cudaGetErrorName(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    default: return "cudaError";
  }
}
cudaError_t cudaGetLastError() { return std::exchange(g_last_error, cudaSuccess); }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = g_driver, cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (static_cast<int>(version) > g_driver) return answer(cudaErrorInvalidValue);
  *result = cudaDriverEntryPointSuccess;
  if (std::strcmp(symbol, "cuDevicePrimaryCtxGetState") == 0)
    *function = reinterpret_cast<void*>(+[](int device, unsigned* flags, int* is_active) {
      *flags = 0;
      *is_active = cudasim::has_context(device);
      return 0;
    });
  else if (std::strcmp(symbol, "cuThreadExchangeStreamCaptureMode") == 0)
    *function = reinterpret_cast<void*>(+[](cudaStreamCaptureMode* mode) {
      if (!g_is_bound) return static_cast<int>(cudaErrorDeviceUninitialized);
      return std::swap(*mode, g_capture_mode), 0;
    });
  else if (std::strcmp(symbol, "cuMemGetAddressRange") == 0)
    *function = reinterpret_cast<void*>(+[](std::uintptr_t* base, std::size_t* bytes, std::uintptr_t address) {
      const cudasim::Range found = cudasim::allocation_of(address);
      *base = found.first;
      *bytes = found.end - found.first;
      return found.end == 0 ? 1 : 0;
    });
  else if (std::strcmp(symbol, "cuStreamWaitValue32") == 0)
    *function = reinterpret_cast<void*>(cudasim::wait_for_value);
  else
    return answer(cudaErrorInvalidValue);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = state().devices;
  return fault("cudaGetDeviceCount");
}
cudaError_t cudaGetDevice(int* device) {
  SIM_FAULT("cudaGetDevice");
  return *device = g_device, cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= state().devices) return answer(cudaErrorInvalidDevice);
  g_device = device;
  g_is_bound = true;
  std::lock_guard lock(state().mutex);
  state().contexts.insert(device);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= state().devices) return answer(cudaErrorInvalidDevice);
  *properties = {"simulated", {}, g_capability / 10, g_capability % 10};
  properties->uuid.bytes[0] = static_cast<char>(1 + state().first_device + device);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  SIM_FAULT("cudaPointerGetAttributes");
  std::lock_guard lock(state().mutex);
  const Block* block = block_of(pointer);
  *attributes = {block ? block->type : cudaMemoryTypeUnregistered, block ? block->device : -1};
  return cudaSuccess;
}

// ---- memory --------------------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  SIM_FAULT("cudaMalloc", true);
  if (bytes > g_largest_allocation) return answer(cudaErrorMemoryAllocation);
  return cudasim::allocate(memory, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaFree(void* memory) {
  cudasim::use_context();
  check_unused(memory);
  cudasim::drain_all();
  return cudasim::release(memory);
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  SIM_FAULT("cudaHostAlloc", true);
  return cudasim::allocate(memory, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const std::atomic<bool>* may_read = nullptr;
  {
    std::lock_guard lock(state().mutex);
    if (overruns(from, bytes) || overruns(to, bytes)) return answer(cudaErrorInvalidValue);
    const Block* const source = block_of(from);
    if (source && source->is_elsewhere) g_bytes_from_elsewhere += bytes;
    if (source && source->fd < 0) may_read = g_may_read;
  }
  const std::vector<cudasim::Range> used{range_of(to, bytes), range_of(from, bytes)};
  {
    std::lock_guard lock(state().mutex);
    for (const cudasim::Range& range : used) state().in_use.insert(range);
  }
  return cudasim::enqueue("cudaMemcpyAsync", stream, [=] {
    while (may_read && !*may_read) usleep(100);
    std::memcpy(to, from, bytes);
    std::lock_guard lock(state().mutex);
    for (const cudasim::Range& range : used) state().in_use.erase(state().in_use.find(range));
  });
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  SIM_FAULT("cudaIpcGetMemHandle");
  return cudasim::export_memory(handle, memory);
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned flags) {
  if (flags != cudaIpcMemLazyEnablePeerAccess) return answer(cudaErrorInvalidValue);
  SIM_FAULT("cudaIpcOpenMemHandle");
  return cudasim::import_memory(memory, &handle);
}
cudaError_t cudaIpcCloseMemHandle(void* memory) { return cudaFree(memory); }

// ---- captures ------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;  // unspecified in an error
  SIM_FAULT("cudaStreamIsCapturing");
  return *status = g_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  cudasim::use_context();
  return std::swap(*mode, g_capture_mode), cudaSuccess;
}
