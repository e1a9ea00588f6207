// Streams and events. A stream is a thread; an event is two counters in memory that other processes can open: how often
// recorded, and up to where that has happened.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string_view>
#include <thread>

#include "sim_state.hpp"

/// What is to be done on a stream. It outlives the stream for those who wait for all streams of the process.
struct SimQueue {
  void run();
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  std::uint64_t put = 0, done = 0;  // pieces of work, ever
  bool ending = false, awaits_value = false;
};

struct SimStream {
  const int device = cudasim::device_in_use();
  SimStream();
  ~SimStream();
  const std::shared_ptr<SimQueue> queue = std::make_shared<SimQueue>();
  std::thread thread;
};

struct SimEvent {
  struct Counters {
    std::atomic<std::uint32_t> recorded, done;
  };
  /// Until all work that is under way has done with it: what ends an event of one process only does not wait for that.
  std::shared_ptr<Counters> counters;
  bool is_ours = true, is_shared = false;
  int gpu = -1;  // of an event of another process
  int device = cudasim::device_in_use();
  unsigned flags = cudaEventDisableTiming | cudaEventInterprocess;
};

namespace {

constexpr int kGreatestPriority = -5;  // of streams; nothing comes of it here
std::atomic<std::size_t> g_most_queued{1000};
std::atomic<int> g_jitter_us{0}, g_jitter_one_in{1};
std::atomic<bool> g_ignore_ipc_events{false}, g_ipc_events_are_stale{false}, g_ipc_waits_are_renewed{false},
    g_callers_are_kept{false}, g_ipc_events_seem_done{false};
std::atomic<bool> g_streams_are_stopped{false}, g_ipc_events_are_lost{false};
std::atomic<int> g_ignored_gpu{-1};

struct Queues {
  std::recursive_mutex mutex;                          // a stream that queue_of() makes enters itself
  std::set<std::shared_ptr<SimQueue>> all;             // of all streams
  std::map<int, std::unique_ptr<SimStream>> defaults;  // by process: a forked child has no threads
};
Queues& queues() {
  static Queues* const it = new Queues;  // never destroyed: owners may outlive main()
  return *it;
}

/// Waits for what is there now.
void drain(SimQueue& queue) {
  std::unique_lock lock(queue.mutex);
  queue.changed.wait(lock, [&, put = queue.put] { return queue.done >= put; });
}
SimQueue& queue_of(cudaStream_t stream) {
  if (stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread) return *stream->queue;
  std::lock_guard lock(queues().mutex);
  auto& mine = queues().defaults[getpid()];
  if (!mine) mine = std::make_unique<SimStream>();
  return *mine->queue;
}

void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) {
  const timespec most{0, 50'000'000};
  syscall(SYS_futex, &word, operation, value, operation == FUTEX_WAIT ? &most : nullptr, nullptr, 0);
}
void wait_until_done(SimEvent::Counters& event, std::uint32_t number) {
  std::uint32_t done;
  while (static_cast<std::int32_t>((done = event.done.load()) - number) < 0) futex(event.done, FUTEX_WAIT, done);
}
std::shared_ptr<SimEvent::Counters> counters_at(SimEvent::Counters* memory) { return {memory, cudasim::release}; }

}  // namespace

SimStream::SimStream() : thread([queue = queue] { queue->run(); }) {
  std::lock_guard lock(queues().mutex);
  queues().all.insert(queue);
}

SimStream::~SimStream() {
  {
    std::lock_guard lock(queues().mutex);
    queues().all.erase(queue);
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
    std::function<void()> next = std::move(work.front());
    work.pop_front();
    lock.unlock();
    while (g_streams_are_stopped) usleep(1000);
    if (const int most = g_jitter_us; most > 0 && random() % g_jitter_one_in == 0) usleep(random() % (most + 1));
    next();
    next = nullptr;
    lock.lock();
    ++done;
    changed.notify_all();
  }
}

namespace cudasim {

void set_jitter(int most_us, int one_in) {
  g_jitter_one_in = one_in;
  g_jitter_us = most_us;
}
void ignore_ipc_events(bool ignored) { g_ignore_ipc_events = ignored; }
void ignore_ipc_events_of(int gpu) { g_ignored_gpu = gpu; }
void keep_ipc_events_stale(bool stale) { g_ipc_events_are_stale = stale; }
void lose_ipc_events(bool lost) { g_ipc_events_are_lost = lost; }
void take_ipc_events_for_done(bool taken) { g_ipc_events_seem_done = taken; }
void renew_ipc_waits(bool renewed) { g_ipc_waits_are_renewed = renewed; }
void keep_callers_behind_values(bool kept) { g_callers_are_kept = kept; }
void set_most_queued(std::size_t pieces) { g_most_queued = pieces; }
void stop_streams() { g_streams_are_stopped = true; }

void drain_all() {
  std::set<std::shared_ptr<SimQueue>> all;
  {
    std::lock_guard lock(queues().mutex);
    all = queues().all;
  }
  for (const auto& queue : all) drain(*queue);
}

/// Default streams are of whichever device is current.
int device_of(cudaStream_t stream) {
  const bool is_default = !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return is_default ? device_in_use() : stream->device;
}

cudaError_t enqueue(const char* call, cudaStream_t stream, std::function<void()> work, bool keeps_others) {
  SIM_FAULT(call);
  if (std::string_view(call) == "cudaLaunchKernelExC" && device_of(stream) != device_in_use())
    return answer(cudaErrorInvalidResourceHandle);
  SimQueue& it = queue_of(stream);
  {
    std::unique_lock lock(it.mutex);
    it.changed.wait(lock, [&] { return !it.awaits_value && it.work.size() < g_most_queued; });
    it.awaits_value = keeps_others;
    it.work.push_back(std::move(work));
    ++it.put;
  }
  it.changed.notify_all();
  return cudaSuccess;
}

void call_in_stream(cudaStream_t stream, void (*function)(void*), void* argument) {
  if (enqueue("call_in_stream", stream, [=] { function(argument); }) != cudaSuccess) std::abort();
}

}  // namespace cudasim

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  SIM_FAULT("cudaStreamCreateWithFlags");
  // Others wait for the legacy default stream, and that for them: nothing here does.
  if (flags != cudaStreamNonBlocking) return cudasim::answer(cudaErrorInvalidValue);
  *stream = new SimStream;
  cudasim::begin_object();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  SIM_FAULT("cudaStreamCreateWithPriority");
  // The only priority that the product asks for.
  if (flags != cudaStreamNonBlocking || priority != kGreatestPriority) return cudasim::answer(cudaErrorInvalidValue);
  *stream = new SimStream;
  cudasim::begin_object();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  SIM_FAULT("cudaDeviceGetStreamPriorityRange");
  return *least = 0, *greatest = kGreatestPriority, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cudasim::use_context();
  delete stream;
  cudasim::end_object();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  SIM_FAULT("cudaStreamSynchronize");
  drain(queue_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  SIM_FAULT("cudaStreamQuery", true);
  SimQueue& it = queue_of(stream);
  std::lock_guard lock(it.mutex);
  return cudasim::answer(it.done == it.put ? cudaSuccess : cudaErrorNotReady);
}
int cudasim::wait_for_value(cudaStream_t stream, std::uintptr_t address, std::uint32_t value, unsigned flags) {
  constexpr unsigned kEqual = 1;
  const Range range = allocation_of(address);
  if (flags != kEqual || address % sizeof value || range.end - address < sizeof value) return cudaErrorInvalidValue;
  auto* const word = reinterpret_cast<std::uint32_t*>(address);
  SimQueue& it = queue_of(stream);
  const auto wait = [=, &it] {
    while (std::atomic_ref(*word).load() != value) usleep(20);
    std::lock_guard lock(it.mutex);
    it.awaits_value = false;  // who is kept hears of it with the end of this work
  };
  return enqueue("cuStreamWaitValue32", stream, wait, g_callers_are_kept);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  SIM_FAULT("cudaEventCreateWithFlags");
  if ((flags & cudaEventInterprocess) && !(flags & cudaEventDisableTiming))
    return cudasim::answer(cudaErrorInvalidValue);
  void* memory;
  if (const cudaError_t code = cudasim::allocate(&memory, sizeof(SimEvent::Counters), cudaMemoryTypeDevice))
    return code;
  *event = new SimEvent{counters_at(new (memory) SimEvent::Counters{})};
  (*event)->flags = flags;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  cudasim::use_context();
  if (event->is_shared) cudasim::drain_all();
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->is_ours && event->device != cudasim::device_of(stream))
    return cudasim::answer(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<SimEvent::Counters> counters = event->counters;
  const std::uint32_t number = counters->recorded.load() + 1;
  const cudaError_t code = cudasim::enqueue("cudaEventRecord", stream, [=] {
    counters->done.store(number);
    futex(counters->done, FUTEX_WAKE, 1 << 30);
  });
  if (code == cudaSuccess) counters->recorded.store(number);
  return code;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::shared_ptr<SimEvent::Counters> counters = event->counters;
  std::uint32_t number = counters->recorded.load();
  if (g_ipc_events_are_stale && !event->is_ours) number = std::min<std::uint32_t>(number, 1);
  const bool ignored = !event->is_ours && (g_ignore_ipc_events || event->gpu == g_ignored_gpu);
  const bool renewed = !event->is_ours && g_ipc_waits_are_renewed;
  const bool lost = !event->is_ours && g_ipc_events_are_lost;
  return cudasim::enqueue("cudaStreamWaitEvent", stream, [=] {
    while (lost) usleep(10'000);
    if (!ignored) wait_until_done(*counters, number);
    while (renewed && counters->done != counters->recorded) wait_until_done(*counters, counters->recorded);
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  SIM_FAULT("cudaEventSynchronize", true);
  wait_until_done(*event->counters, event->counters->recorded.load());
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  SIM_FAULT("cudaEventQuery", true);
  if (!event->is_ours && g_ipc_events_seem_done) return cudaSuccess;
  const SimEvent::Counters& it = *event->counters;
  const bool is_done = static_cast<std::int32_t>(it.done.load() - it.recorded.load()) >= 0;
  return cudasim::answer(is_done ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  SIM_FAULT("cudaIpcGetEventHandle");
  if (!(event->flags & cudaEventInterprocess)) return cudasim::answer(cudaErrorInvalidResourceHandle);
  event->is_shared = true;
  return cudasim::export_memory(handle, event->counters.get());
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  SIM_FAULT("cudaIpcOpenEventHandle");
  void* memory;
  if (const cudaError_t code = cudasim::import_memory(&memory, &handle)) return code;
  *event = new SimEvent{counters_at(static_cast<SimEvent::Counters*>(memory)), false, true, cudasim::gpu_of(&handle)};
  return cudaSuccess;
}
