#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>

namespace cudasim {

/// Bytes that tests have behind what kernels write, to see that they stay: none where all access is checked (ptx.hpp).
inline const std::size_t kGuard = std::getenv("CUDASIM_KERNELS") ? 0 : 16;

/// Devices of this process from now on; device i of every process with the same `first` is the same GPU.
void set_devices(int count, int first = 0);

/// Compute capability of the devices (90, of 9.0, at first), and the newest CUDA that the driver knows (13000).
void set_gpu(int capability, int driver = 13000);

/// Memory of another GPU can be opened where both are of the same island: so many each, by their number among all.
/// 0, as at first: all are of one.
void set_islands(int gpus);
/// Memory of other GPUs opens, and holds something else.
void set_garbled_peers(bool garbled);

/// The `nth` next call of that name (1: the very next) in this process fails with `code`; later ones work again.
void fail(const char* call, cudaError_t code, int nth = 1);
/// That call fails always, from now on.
void fail_always(const char* call, cudaError_t code);

/// Larger allocations of device memory fail with cudaErrorMemoryAllocation.
void set_largest_allocation(std::size_t bytes);

/// Each piece of work on a stream, or one in so many by chance, is preceded by a pause of 0 to `most_us` microseconds,
/// so that what was not ordered comes out of order. One in four shows it as well, in two thirds of the time.
void set_jitter(int most_us, int one_in = 1);

/// Copies from memory of other processes begin when that is true.
void hold_reads(const std::atomic<bool>& until);

/// Waits on events of other processes do nothing, as if the driver ignored them.
void ignore_ipc_events(bool ignored);
/// The same for those of one GPU, by its number among all.
void ignore_ipc_events_of(int gpu);
/// Waits on events of other processes are for what was recorded first, as if the driver had not heard of more.
void keep_ipc_events_stale(bool stale);
/// Waits on events of other processes do not end.
void lose_ipc_events(bool lost);
/// Events of other processes count as done, whatever they stand for.
void take_ipc_events_for_done(bool taken);
/// Pending waits on events of other processes follow these when they are recorded anew.
void renew_ipc_waits(bool renewed);

/// Who hands over work behind cuStreamWaitValue32 is kept until that has its value, as some drivers do.
void keep_callers_behind_values(bool kept);

/// Calls a function of the host when the stream gets there.
void call_in_stream(cudaStream_t stream, void (*function)(void*), void* argument);

/// A stream of this process takes so many pieces of work (1000 at first), and keeps who hands over another one.
void set_most_queued(std::size_t pieces);

/// Streams of this process take up no more work, as when it is killed with work under way.
void stop_streams();

/// Streams count as being captured.
void set_capturing(bool capturing);
/// Another thread captures, in the global mode: calls that it forbids all threads fail, save where theirs is relaxed.
void set_capturing_elsewhere(bool capturing);

/// What this process's copies have read from memory of other GPUs, in bytes; kernels are not counted.
std::size_t bytes_from_other_gpus();

/// Whether this process made a device current, or used it.
bool has_context(int device);

/// Kernels that this process has loaded by launching them.
int late_loads();

/// How often this process has called what the name says, whether it failed or not.
int calls(const char* call);

/// Host memory that this process has pinned, in bytes: now, and at most since the process began or forgot.
std::size_t pinned_bytes();
std::size_t most_pinned_bytes();
void forget_most_pinned();

/// Owners that this process has not let go yet: allocations, mappings, streams, events.
int live_objects();

}  // namespace cudasim
