#pragma once
// Stand-in for the CUDA runtime in tests: the calls that csrc/ uses, on host memory. Streams are threads, so work runs
// beside the host and in no order but the one asked for; "device" memory is shared memory, so that IPC handles work
// between processes. What tests can change about it is in cudasim.hpp. Found instead of the toolkit's header.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <tuple>
#include <utility>

#define __global__
#define __device__

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
// What is said of the device's cache changes no bits.
template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, T value) {
  *to = value;
}

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorCudartUnloading = 4,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorDeviceUninitialized = 201,
  cudaErrorMapBufferObjectFailed = 205,
  cudaErrorPeerAccessUnsupported = 217,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureImplicit = 906,
};
const char* cudaGetErrorString(cudaError_t code);
const char* cudaGetErrorName(cudaError_t code);
cudaError_t cudaGetLastError();

using cudaStream_t = struct SimStream*;
using cudaEvent_t = struct SimEvent*;
#define cudaStreamLegacy (reinterpret_cast<cudaStream_t>(1))
#define cudaStreamPerThread (reinterpret_cast<cudaStream_t>(2))
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaEventInterprocess = 4;
constexpr unsigned cudaHostAllocDefault = 0, cudaIpcMemLazyEnablePeerAccess = 1;
#define CUDART_VERSION 13000

struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  int major, minor;
};
struct cudaIpcMemHandle_t {
  char reserved[64];
};
struct cudaIpcEventHandle_t {
  char reserved[64];
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
constexpr unsigned long long cudaEnableDefault = 0;

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* result);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);

cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory);
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void* memory);
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event);
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle);

struct cudaLaunchAttribute;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
inline thread_local dim3 gridDim, blockDim, blockIdx, threadIdx;

/// What kernels on several streams may do to the same word.
inline unsigned atomicMax(unsigned* word, unsigned value) {
  std::atomic_ref<unsigned> it(*word);
  unsigned before = it.load();
  while (before < value && !it.compare_exchange_weak(before, value)) {
  }
  return before;
}

struct cudaFuncAttributes {};

namespace cudasim {
/// A kernel is loaded when it is first asked for, or launched.
cudaError_t load(const void* kernel);
void note_launch(const void* kernel);
/// Puts work at the end of a stream; the code that an injected fault gives `call`, else success.
/// keeps_others: who hands over work behind it is kept until it clears that.
cudaError_t enqueue(const char* call, cudaStream_t stream, std::function<void()> work, bool keeps_others = false);

/// One thread of what nvcc made of a kernel; it finds the arguments where these point to.
using Thread = void (*)(const void* const* arguments);
/// That of a kernel whose arguments have these sizes, where CUDASIM_KERNELS names the GPU ("sm_90"), else nullptr.
Thread thread_by_nvcc(const void* kernel, std::initializer_list<std::size_t> sizes);
}  // namespace cudasim

template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel* kernel) {
  return cudasim::load(reinterpret_cast<const void*>(kernel));
}

/// A kernel becomes a loop over its threads. Arguments are copied, as the real one does. What nvcc made of it runs from
/// the last thread to the first: on a GPU there is no order, so none may count on what another one did before.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  cudasim::note_launch(reinterpret_cast<const void*>(kernel));
  const dim3 grid = config->gridDim, block = config->blockDim;
  std::tuple<Parameters...> copied(static_cast<Parameters>(arguments)...);
  return cudasim::enqueue("cudaLaunchKernelExC", config->stream, [=] {
    const cudasim::Thread by_nvcc =
        cudasim::thread_by_nvcc(reinterpret_cast<const void*>(kernel), {sizeof(Parameters)...});
    gridDim = grid;
    blockDim = block;
    const unsigned threads = grid.x * block.x;
    for (unsigned i = 0; i < threads; ++i) {
      const unsigned thread = by_nvcc ? threads - 1 - i : i;
      blockIdx = dim3(thread / block.x, 0, 0);
      threadIdx = dim3(thread % block.x, 0, 0);
      if (by_nvcc)
        std::apply([&](const auto&... each) { by_nvcc(std::data({static_cast<const void*>(&each)...})); }, copied);
      else
        std::apply(kernel, copied);
    }
  });
}
