// See cuda_runtime.h. Memory is a memfd; a handle names it as process and file number, and the opener finds it in
// /proc/<process>/fd. Events are two counters in such a memory: how often recorded, and up to where that has happened.
#include "cudasim.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>

/// What is to be done on a stream. It outlives the stream for those who wait for all streams of the process.
struct SimQueue {
  void run();
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool busy = false, ending = false;
};

struct SimStream {
  SimStream();
  ~SimStream();
  const std::shared_ptr<SimQueue> queue = std::make_shared<SimQueue>();
  std::thread thread;
};

namespace {

struct Block {
  int fd = -1;  // -1: a mapping of another process's
  std::size_t bytes = 0;
  cudaMemoryType type = cudaMemoryTypeDevice;
  int device = 0;
  bool is_elsewhere = false;  // on another GPU
};

struct Fault {
  cudaError_t code;
  int calls_left;  // until the one that fails; -1: all fail
};

struct State {
  std::recursive_mutex mutex;
  int devices = 1, first_device = 0, live = 0;
  std::map<const std::byte*, Block> blocks;
  std::map<std::string, Fault> faults;
  std::set<std::shared_ptr<SimQueue>> queues;          // of all streams
  std::map<int, std::unique_ptr<SimStream>> defaults;  // by process: a forked child has no threads
  std::set<int> contexts;                              // by device
};
State& state() {
  static State* const it = new State;  // never destroyed: owners may outlive main()
  return *it;
}
std::atomic<std::size_t> g_largest_allocation{SIZE_MAX}, g_bytes_from_elsewhere{0};
std::atomic<int> g_jitter_us{0};
std::atomic<bool> g_ignore_ipc_events{false}, g_capturing{false}, g_capturing_elsewhere{false}, g_peer_access{true};
thread_local int g_device = 0;
thread_local cudaStreamCaptureMode g_capture_mode = cudaStreamCaptureModeGlobal;
thread_local cudaError_t g_last_error = cudaSuccess;

cudaError_t answer(cudaError_t code) {
  if (code != cudaSuccess) g_last_error = code;
  return code;
}

/// is_unsafe: not allowed while any thread captures in the global mode.
cudaError_t fault(const char* call, bool is_unsafe = false) {
  std::lock_guard lock(state().mutex);
  if (state().devices == 0) return answer(cudaErrorNoDevice);
  if (is_unsafe && g_capturing_elsewhere && g_capture_mode != cudaStreamCaptureModeRelaxed)
    return answer(cudaErrorStreamCaptureUnsupported);
  const auto found = state().faults.find(call);
  if (found == state().faults.end()) return cudaSuccess;
  Fault& it = found->second;
  if (it.calls_left > 1) return --it.calls_left, cudaSuccess;
  const cudaError_t code = it.code;
  if (it.calls_left == 1) state().faults.erase(found);
  return answer(code);
}
#define SIM_FAULT(...) \
  if (const cudaError_t code_ = fault(__VA_ARGS__); code_ != cudaSuccess) return code_

struct Address {
  int pid, fd;
  std::uint64_t bytes;
  int device, gpu;
};

void* map(int fd, std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

cudaError_t allocate(void** memory, std::size_t bytes, cudaMemoryType type) {
  std::lock_guard lock(state().mutex);
  const std::size_t mapped = std::max<std::size_t>(bytes, 1);
  const int fd = memfd_create("cudasim", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(mapped)) != 0 || !(*memory = map(fd, mapped)))
    return answer(cudaErrorMemoryAllocation);
  std::memset(*memory, 0xa5, mapped);  // nobody may count on zeros
  state().contexts.insert(g_device);
  state().blocks[static_cast<std::byte*>(*memory)] = {fd, mapped, type, g_device};
  ++state().live;
  return cudaSuccess;
}

cudaError_t release(void* memory) {
  if (!memory) return cudaSuccess;
  std::lock_guard lock(state().mutex);
  const auto found = state().blocks.find(static_cast<std::byte*>(memory));
  if (found == state().blocks.end()) return answer(cudaErrorInvalidValue);
  munmap(memory, found->second.bytes);
  if (found->second.fd >= 0) close(found->second.fd);
  state().blocks.erase(found);
  --state().live;
  return cudaSuccess;
}

const Block* block_of(const void* pointer) {
  const auto* at = static_cast<const std::byte*>(pointer);
  auto found = state().blocks.upper_bound(at);
  if (found == state().blocks.begin()) return nullptr;
  --found;
  return at < found->first + found->second.bytes ? &found->second : nullptr;
}

template <class Handle>
cudaError_t export_memory(Handle* handle, void* memory) {
  std::lock_guard lock(state().mutex);
  const auto found = state().blocks.find(static_cast<std::byte*>(memory));
  if (found == state().blocks.end() || found->second.fd < 0) return answer(cudaErrorInvalidValue);
  const Block& it = found->second;
  const Address address{getpid(), it.fd, it.bytes, it.device, state().first_device + it.device};
  static_assert(sizeof address <= sizeof(Handle));
  std::memcpy(handle, &address, sizeof address);
  return cudaSuccess;
}

template <class Handle>
cudaError_t import_memory(void** memory, const Handle& handle) {
  Address address;
  std::memcpy(&address, &handle, sizeof address);
  if (address.pid == getpid()) return answer(cudaErrorInvalidResourceHandle);  // as the real one
  if (!g_peer_access && address.gpu != state().first_device + g_device) return answer(cudaErrorPeerAccessUnsupported);
  const std::string path = "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return answer(cudaErrorMapBufferObjectFailed);
  *memory = map(fd, address.bytes);
  close(fd);
  if (!*memory) return answer(cudaErrorMapBufferObjectFailed);
  std::lock_guard lock(state().mutex);
  state().blocks[static_cast<std::byte*>(*memory)] = {-1, address.bytes, cudaMemoryTypeDevice, address.device,
                                                      address.gpu != state().first_device + g_device};
  ++state().live;
  return cudaSuccess;
}

void drain(SimQueue& queue) {
  std::unique_lock lock(queue.mutex);
  queue.changed.wait(lock, [&] { return queue.work.empty() && !queue.busy; });
}
/// What frees memory or ends an event waits for all work of the process first, as the real one may.
void drain_all() {
  std::set<std::shared_ptr<SimQueue>> all;
  {
    std::lock_guard lock(state().mutex);
    all = state().queues;
  }
  for (const auto& queue : all) drain(*queue);
}

SimQueue& queue_of(cudaStream_t stream) {
  if (stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread) return *stream->queue;
  std::lock_guard lock(state().mutex);
  auto& mine = state().defaults[getpid()];
  if (!mine) mine = std::make_unique<SimStream>();
  return *mine->queue;
}

}  // namespace

struct SimEvent {
  struct Counters {
    std::atomic<std::uint32_t> recorded, done;
  };
  Counters* counters;
  bool is_ours = true;
};

SimStream::SimStream() : thread([queue = queue] { queue->run(); }) {
  std::lock_guard lock(state().mutex);
  state().queues.insert(queue);
}

SimStream::~SimStream() {
  {
    std::lock_guard lock(state().mutex);
    state().queues.erase(queue);
  }
  {
    std::lock_guard lock(queue->mutex);
    queue->ending = true;
  }
  queue->changed.notify_all();
  thread.join();
}

void SimQueue::run() {
  std::minstd_rand random(static_cast<unsigned>(getpid()));
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return ending || !work.empty(); });
    if (work.empty()) return;
    const std::function<void()> next = std::move(work.front());
    work.pop_front();
    busy = true;
    lock.unlock();
    if (const int most = g_jitter_us) usleep(random() % (most + 1));
    next();
    lock.lock();
    busy = false;
    changed.notify_all();
  }
}

namespace cudasim {

void set_devices(int count, int first) {
  state().devices = count;
  state().first_device = first;
}
void fail(const char* call, cudaError_t code, int nth) { state().faults[call] = {code, nth}; }
void fail_always(const char* call, cudaError_t code) { state().faults[call] = {code, -1}; }
void set_peer_access(bool allowed) { g_peer_access = allowed; }
void set_largest_allocation(std::size_t bytes) { g_largest_allocation = bytes; }
void set_jitter(int most_us) { g_jitter_us = most_us; }
void ignore_ipc_events(bool ignored) { g_ignore_ipc_events = ignored; }
void set_capturing(bool capturing) { g_capturing = capturing; }
void set_capturing_elsewhere(bool capturing) { g_capturing_elsewhere = capturing; }
std::size_t bytes_from_other_gpus() { return g_bytes_from_elsewhere; }
bool has_context(int device) {
  std::lock_guard lock(state().mutex);
  return state().contexts.contains(device);
}
int live_objects() {
  std::lock_guard lock(state().mutex);
  return state().live;
}

cudaError_t enqueue(const char* call, cudaStream_t stream, std::function<void()> work) {
  SIM_FAULT(call);
  SimQueue& it = queue_of(stream);
  {
    std::lock_guard lock(it.mutex);
    it.work.push_back(std::move(work));
  }
  it.changed.notify_all();
  return cudaSuccess;
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
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (std::strcmp(symbol, "cuDevicePrimaryCtxGetState") != 0) return answer(cudaErrorInvalidValue);
  *result = cudaDriverEntryPointSuccess;
  *function = reinterpret_cast<void*>(+[](int device, unsigned* flags, int* is_active) {
    *flags = 0;
    *is_active = cudasim::has_context(device);
    return 0;
  });
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
  std::lock_guard lock(state().mutex);
  state().contexts.insert(device);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= state().devices) return answer(cudaErrorInvalidDevice);
  *properties = {"simulated", {}};
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
  return allocate(memory, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaFree(void* memory) {
  drain_all();
  return release(memory);
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  SIM_FAULT("cudaHostAlloc", true);
  return allocate(memory, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  {
    std::lock_guard lock(state().mutex);
    const Block* const source = block_of(from);
    if (source && source->is_elsewhere) g_bytes_from_elsewhere += bytes;
  }
  return cudasim::enqueue("cudaMemcpyAsync", stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  SIM_FAULT("cudaIpcGetMemHandle");
  return export_memory(handle, memory);
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  SIM_FAULT("cudaIpcOpenMemHandle");
  return import_memory(memory, handle);
}
cudaError_t cudaIpcCloseMemHandle(void* memory) { return cudaFree(memory); }

// ---- streams and events --------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  SIM_FAULT("cudaStreamCreateWithFlags");
  *stream = new SimStream;
  std::lock_guard lock(state().mutex);
  state().contexts.insert(g_device);
  ++state().live;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  std::lock_guard lock(state().mutex);
  --state().live;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  SIM_FAULT("cudaStreamSynchronize");
  drain(queue_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  SimQueue& it = queue_of(stream);
  std::lock_guard lock(it.mutex);
  return it.work.empty() && !it.busy ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  return cudasim::enqueue("cudaLaunchHostFunc", stream, [=] { function(argument); });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = g_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return std::swap(*mode, g_capture_mode), cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  SIM_FAULT("cudaEventCreateWithFlags");
  void* memory;
  if (const cudaError_t code = allocate(&memory, sizeof(SimEvent::Counters), cudaMemoryTypeDevice)) return code;
  *event = new SimEvent{new (memory) SimEvent::Counters{}};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  drain_all();
  release(event->counters);
  delete event;
  return cudaSuccess;
}

namespace {

void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) {
  const timespec most{0, 50'000'000};
  syscall(SYS_futex, &word, operation, value, operation == FUTEX_WAIT ? &most : nullptr, nullptr, 0);
}
void wait_until_done(SimEvent::Counters& event, std::uint32_t number) {
  std::uint32_t done;
  while (static_cast<std::int32_t>((done = event.done.load()) - number) < 0) futex(event.done, FUTEX_WAIT, done);
}

}  // namespace

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  SimEvent::Counters* counters = event->counters;
  const std::uint32_t number = counters->recorded.load() + 1;
  const cudaError_t code = cudasim::enqueue("cudaEventRecord", stream, [=] {
    counters->done.store(number);
    futex(counters->done, FUTEX_WAKE, 1 << 30);
  });
  if (code == cudaSuccess) counters->recorded.store(number);
  return code;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  SimEvent::Counters* counters = event->counters;
  const std::uint32_t number = counters->recorded.load();
  const bool ignored = g_ignore_ipc_events && !event->is_ours;
  return cudasim::enqueue("cudaStreamWaitEvent", stream, [=] {
    if (!ignored) wait_until_done(*counters, number);
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  SIM_FAULT("cudaEventSynchronize");
  wait_until_done(*event->counters, event->counters->recorded.load());
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  SIM_FAULT("cudaEventQuery", true);
  const SimEvent::Counters& it = *event->counters;
  return static_cast<std::int32_t>(it.done.load() - it.recorded.load()) >= 0 ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  SIM_FAULT("cudaIpcGetEventHandle");
  return export_memory(handle, event->counters);
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  SIM_FAULT("cudaIpcOpenEventHandle");
  void* memory;
  if (const cudaError_t code = import_memory(&memory, handle)) return code;
  *event = new SimEvent{static_cast<SimEvent::Counters*>(memory), false};
  return cudaSuccess;
}
