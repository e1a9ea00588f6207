#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "device/cuda.hpp"
#include "device/cuda_report.hpp"

namespace accdp {
namespace {

/// Closing reports, it never throws. At the end of a process the runtime may be gone before the last owner, and a
/// process that was forked from one with CUDA has none.
void report(cudaError_t code, const char* what) noexcept {
  if (code != cudaSuccess && code != cudaErrorCudartUnloading && code != cudaErrorInitializationError)
    std::fprintf(stderr, "accdp: %s: %s (%s)\n", what, cudaGetErrorString(code), cudaGetErrorName(code));
}

/// What holds memory here: events behind it.
struct EndlessWork {
  std::atomic<bool> is_there = false;
  std::mutex mutex;
  std::vector<Event> passed;
  bool is_unknown = false;  // some of it has no event
};
EndlessWork& endless_work() {
  static auto* const it = new EndlessWork;  // never destroyed: no CUDA call after main()
  return *it;
}

}  // namespace

void throw_cuda(const char* call, cudaError_t code, const char* file, int line) {
  const char* base = std::strstr(file, "csrc/");
  throw CudaError(std::string(call) + " failed: " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ", " +
                  (base ? base + 5 : file) + ":" + std::to_string(line) + ")");
}

void StreamTraits::close(Raw stream) noexcept { report(cudaStreamDestroy(stream), "cudaStreamDestroy"); }
void EventTraits::close(Raw event) noexcept { report(cudaEventDestroy(event), "cudaEventDestroy"); }
void DeviceMemoryTraits::close(Raw memory) noexcept {
  if (!keeps_all_memory()) report(cudaFree(memory), "cudaFree");
}
void PinnedMemoryTraits::close(Raw memory) noexcept {
  if (!keeps_all_memory()) report(cudaFreeHost(memory), "cudaFreeHost");
}
void IpcMappingTraits::close(Raw mapping) noexcept {
  if (!keeps_all_memory()) report(cudaIpcCloseMemHandle(mapping), "cudaIpcCloseMemHandle");
}

void keep_all_memory(cudaStream_t stream) noexcept {
  EndlessWork& work = endless_work();
  std::lock_guard lock(work.mutex);
  work.is_there = true;
  try {
    Event passed = make_event();
    record(passed, stream);
    work.passed.push_back(std::move(passed));
  } catch (const std::exception&) {
    work.is_unknown = true;
  }
}

bool keeps_all_memory() noexcept {
  EndlessWork& work = endless_work();
  if (!work.is_there) return false;
  std::lock_guard lock(work.mutex);
  std::erase_if(work.passed, [](const Event& event) { return is_done(event); });
  return work.is_there = work.is_unknown || !work.passed.empty();
}

Stream make_stream(bool is_urgent) {
  cudaStream_t stream;
  if (is_urgent) {
    int least, greatest;
    ACCDP_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    ACCDP_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  } else {
    ACCDP_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  return Stream(stream);
}

Event make_event(bool shared) {
  cudaEvent_t event;
  ACCDP_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | (shared ? cudaEventInterprocess : 0)));
  return Event(event);
}

cudaIpcEventHandle_t share_event(const Event& event) {
  cudaIpcEventHandle_t handle;
  ACCDP_CUDA(cudaIpcGetEventHandle(&handle, event.get()));
  return handle;
}

Event open_event(const cudaIpcEventHandle_t& handle) {
  cudaEvent_t event;
  ACCDP_CUDA(cudaIpcOpenEventHandle(&event, handle));
  return Event(event);
}

IpcMapping open_memory(const cudaIpcMemHandle_t& handle) {
  void* memory;
  ACCDP_CUDA(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
  return IpcMapping(memory);
}

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* memory;
  ACCDP_CUDA(cudaMalloc(&memory, bytes));
  memory_ = Handle<DeviceMemoryTraits>(memory);
}

cudaIpcMemHandle_t DeviceBuffer::share() const {
  cudaIpcMemHandle_t handle;
  ACCDP_CUDA(cudaIpcGetMemHandle(&handle, memory_.get()));
  return handle;
}

PinnedBuffer::PinnedBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* memory;
  ACCDP_CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
  memory_ = Handle<PinnedMemoryTraits>(memory);
}

PinnedBuffer PinnedBuffer::if_any(std::size_t bytes) {
  PinnedBuffer found;
  void* memory;
  const cudaError_t code = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
  if (code == cudaSuccess) {
    found.memory_ = Handle<PinnedMemoryTraits>(memory);
    found.bytes_ = bytes;
    return found;
  }
  static_cast<void>(cudaGetLastError());
  if (code != cudaErrorMemoryAllocation)
    throw_cuda("cudaHostAlloc(&memory, bytes, cudaHostAllocDefault)", code, __FILE__, __LINE__);
  return found;
}

namespace {
/// A function of the driver that the runtime has no equal of; null where the driver lacks it. since: the CUDA that has
/// it as we call it. The runtime's own version, of which earlier runtimes ask, is refused by an older driver.
template <class Function>
Function* driver_function(const char* name, [[maybe_unused]] unsigned since) noexcept {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result);
#else
  const cudaError_t code = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  return code == cudaSuccess ? reinterpret_cast<Function*>(found) : nullptr;
}

/// Asked of the driver: the runtime makes a context on the thread's current device, which is 0 where nobody chose one.
bool exchange_capture_mode(cudaStreamCaptureMode& mode) noexcept {
  using Exchange = int(cudaStreamCaptureMode * mode);
  static const auto exchange = driver_function<Exchange>("cuThreadExchangeStreamCaptureMode", 10010);
  const cudaError_t code =
      exchange ? static_cast<cudaError_t>(exchange(&mode)) : cudaThreadExchangeStreamCaptureMode(&mode);
  // Where CUDA is not in use, in this process or in this thread, it has nothing that a capture forbids.
  if (code != cudaErrorDeviceUninitialized) report(code, "exchange of the thread's capture mode");
  return code == cudaSuccess;
}
}  // namespace

int current_device() {
  int device;
  ACCDP_CUDA(cudaGetDevice(&device));
  return device;
}

void use_device(int device) {
  ACCDP_CUDA(cudaSetDevice(device));
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  exchange_capture_mode(mode);
}

void RelaxedCapture::enter() noexcept {
  if (!is_exchanged_) is_exchanged_ = exchange_capture_mode(mode_);
}
RelaxedCapture::~RelaxedCapture() {
  if (is_exchanged_) exchange_capture_mode(mode_);
}

namespace {
/// Whether this process uses the device. Asked of the driver: the runtime makes a context where there is none.
bool has_context(int device) noexcept {
  using GetState = int(int device, unsigned* flags, int* is_active);
  static const auto get_state = driver_function<GetState>("cuDevicePrimaryCtxGetState", 7000);
  unsigned flags = 0;
  int is_active = 1;
  return !get_state || get_state(device, &flags, &is_active) != 0 || is_active;
}
}  // namespace

DeviceGuard::DeviceGuard(int device) {
  const int before = current_device();
  if (before == device && relaxed_.is_entered()) return;
  ACCDP_CUDA(cudaSetDevice(device));
  relaxed_.enter();
  if (before != device) before_ = before;
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0 && has_context(before_)) report(cudaSetDevice(before_), "cudaSetDevice");
}

std::optional<DeviceGuard> guard_if_possible(int device) noexcept {
  try {
    return std::optional<DeviceGuard>(std::in_place, device);
  } catch (const CudaError&) {
    return std::nullopt;
  }
}

void copy_async(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  if (bytes && to != from) ACCDP_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}

bool is_one_allocation(const void* one, const void* other) noexcept {
  using GetRange = int(std::uintptr_t* base, std::size_t* bytes, std::uintptr_t address);
  static const auto get_range = driver_function<GetRange>("cuMemGetAddressRange", 3020);
  const auto at = reinterpret_cast<std::uintptr_t>(other);
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  if (!get_range || get_range(&base, &bytes, reinterpret_cast<std::uintptr_t>(one)) != 0) return false;
  return base <= at && at - base < bytes;
}

void record(const Event& event, cudaStream_t stream) { ACCDP_CUDA(cudaEventRecord(event.get(), stream)); }
void wait_for(cudaStream_t later, const Event& event) { ACCDP_CUDA(cudaStreamWaitEvent(later, event.get(), 0)); }

void drain(cudaStream_t stream) noexcept { static_cast<void>(cudaStreamSynchronize(stream)); }
void drain(const Event& event) noexcept { static_cast<void>(cudaEventSynchronize(event.get())); }

namespace {
/// Of a query. "Not ready" is no error, but the runtime would tell it to whoever asks for the last one.
bool is_not_ready(cudaError_t code) noexcept {
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  return code == cudaErrorNotReady;
}
}  // namespace

bool is_busy(cudaStream_t stream) {
  const cudaError_t code = cudaStreamQuery(stream);
  if (is_not_ready(code)) return true;
  ACCDP_CUDA(code);
  return false;
}

bool is_done(cudaStream_t stream) noexcept { return !is_not_ready(cudaStreamQuery(stream)); }
bool is_done(const Event& event) noexcept { return !is_not_ready(cudaEventQuery(event.get())); }

namespace {
constexpr std::chrono::microseconds kSpin{200}, kNap{20};
constexpr std::chrono::milliseconds kBetweenLooks{1};
thread_local const WatchedWaits* t_watch = nullptr;

/// Returns when it is done, or at once where nobody watches: the driver then waits.
template <class Work>
void watch(const Work& work) {
  if (!t_watch) return;
  const auto begun = Clock::now();
  for (auto next_look = begun + kBetweenLooks; !is_done(work);) {
    const auto now = Clock::now();
    if (now >= next_look) {
      t_watch->look();
      next_look = now + kBetweenLooks;
    }
    now < begun + kSpin ? std::this_thread::yield() : std::this_thread::sleep_for(kNap);
  }
}
}  // namespace

WatchedWaits::WatchedWaits(std::function<void()> look) : look_(std::move(look)), outer_(std::exchange(t_watch, this)) {}
WatchedWaits::~WatchedWaits() { t_watch = outer_; }

void synchronize(cudaStream_t stream) {
  watch(stream);
  ACCDP_CUDA(cudaStreamSynchronize(stream));
}
void synchronize(const Event& event) {
  watch(event);
  ACCDP_CUDA(cudaEventSynchronize(event.get()));
}

void grow(DeviceBuffer& buffer, std::size_t bytes, cudaStream_t stream) {
  if (buffer.bytes() >= bytes) return;
  synchronize(stream);
  buffer = {};  // before, not beside the new one
  buffer = DeviceBuffer(bytes);
}

void wait_for_value(cudaStream_t stream, const std::uint32_t* word, std::uint32_t value) {
  using Wait = int(cudaStream_t stream, std::uintptr_t address, std::uint32_t value, unsigned flags);
  constexpr unsigned kEqual = 1;  // CU_STREAM_WAIT_VALUE_EQ
  // An older one had to be switched on for the whole machine.
  static const auto wait = driver_function<Wait>("cuStreamWaitValue32", 11070);
  if (!wait) throw CudaError("cuStreamWaitValue32: expected a driver that has it, of CUDA 11.7 or later");
  if (const int code = wait(stream, reinterpret_cast<std::uintptr_t>(word), value, kEqual))
    throw_cuda("cuStreamWaitValue32", static_cast<cudaError_t>(code), __FILE__, __LINE__);
}

void refuse_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t code = cudaStreamIsCapturing(stream, &status);
  if (code == cudaErrorStreamCaptureImplicit) {  // the default stream, and one that it must wait for is being captured
    static_cast<void>(cudaGetLastError());
    status = cudaStreamCaptureStatusActive;
  } else {
    ACCDP_CUDA(code);
  }
  if (status != cudaStreamCaptureStatusNone)
    throw UsageError("the current stream is being captured into a CUDA graph: collectives cannot be part of a graph");
}

void load_kernel(const void* kernel) noexcept {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) static_cast<void>(cudaGetLastError());
}

GpuId gpu_id(int device) {
  cudaDeviceProp properties;
  ACCDP_CUDA(cudaGetDeviceProperties(&properties, device));
  GpuId id;
  static_assert(sizeof id.uuid == sizeof properties.uuid);
  std::memcpy(id.uuid, &properties.uuid, sizeof id.uuid);
  return id;
}

std::string gpu_model(int device) {
  cudaDeviceProp properties;
  ACCDP_CUDA(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

int device_of(std::uintptr_t address, const char* name) {
  int device;
  ACCDP_CUDA(cudaGetDevice(&device));
  if (address == 0) return device;
  cudaPointerAttributes attributes;
  ACCDP_CUDA(cudaPointerGetAttributes(&attributes, reinterpret_cast<const void*>(address)));
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged)
    throw UsageError(std::string(name) + ": expected memory of a CUDA device");
  return attributes.device;
}

void expect_code(int device) {
  const auto capability = [](int tenths) { return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10); };
  cudaDeviceProp gpu;
  ACCDP_CUDA(cudaGetDeviceProperties(&gpu, device));
  const int found = 10 * gpu.major + gpu.minor;
  if (found < ACCDP_OLDEST_GPU)  // for later ones the driver compiles what is missing
    throw CudaError(std::string(gpu.name) + " has compute capability " + capability(found) + ": expected " +
                    capability(ACCDP_OLDEST_GPU) + " or more, for which accdp was built");
}

CudaReport cuda_report() {
  CudaReport report;
  report.runtime_version = CUDART_VERSION;
  static_cast<void>(cudaDriverGetVersion(&report.driver_version));
  const cudaError_t code = cudaGetDeviceCount(&report.devices);
  if (code != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    report.devices = 0;
    report.why_not = std::string(cudaGetErrorString(code)) + " (" + cudaGetErrorName(code) + ")";
  } else if (report.devices == 0) {
    report.why_not = "no GPU is visible";
  }
  for (int device = 0; device < report.devices; ++device) {
    try {
      expect_code(device);
      report.why_not.clear();
      break;
    } catch (const CudaError& error) {
      report.why_not = error.what();
    }
  }
  if (report.driver_version == 0) report.why_not = "no NVIDIA driver";
  return report;
}

}  // namespace accdp
