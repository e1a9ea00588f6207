#include "gpu/device_collectives.hpp"

#include <atomic>
#include <cstring>
#include <limits>
#include <optional>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/keep.hpp"
#include "device/cuda_reduce.hpp"
#include "gpu/device_messages.hpp"
#include "gpu/device_scope.hpp"
#include "gpu/gpu_pipeline.hpp"
#include "gpu/host_copies.hpp"
#include "gpu/shared_gpu.hpp"
#include "gpu/staging.hpp"

namespace accdp {

struct DevicePath::State {
  std::atomic<int> device{-1};
  std::string why_not = "not used yet";  // why the pool is not used
  Stream own_stream;                     // of the staged path, where there is no pool
  Event before, after;
  Staging staging;
  std::shared_ptr<SpareWorkshop> workshop = std::make_shared<SpareWorkshop>();
  int nodes = 1;
  bool is_pool_made = false;
  std::atomic<bool> has_failed{false};    // a call did, and may have left work on the stream
  std::optional<GpuHierarchy> hierarchy;  // where ranks share memory, but not all of them the same
  std::unique_ptr<Pool> pool;             // last: its end waits for the stream, before the memory above goes

  bool is_shared() const { return pool && !hierarchy; }
  bool goes_over_gpus(const Context& c, std::size_t bytes, bool in_rank_order = false) const {
    return hierarchy && accdp::goes_over_gpus(c, *hierarchy, bytes) &&
           !(in_rank_order && c.topology().size() > static_cast<int>(kMostSources));
  }
  /// Gather, scatter and alltoall.
  bool moves_over_gpus(const Context& c) const { return hierarchy && gpu_piece_bytes(c, *hierarchy) > 0; }
  cudaStream_t stream() const { return pool ? pool->stream() : own_stream.get(); }
  bool is_set_up() const { return static_cast<bool>(after); }
  /// Collective over the ranks of the node: the pool, if all of them share it.
  Pool* shared_pool(Context& context);
  void make_pool(Context& context);
  void set_up(Context& context);
  void set_up_hierarchy(Context& context);
};

namespace {

constexpr std::size_t kLongestSegment = 4 << 20;  // long enough for PCIe, and several are on the wire

/// Of what is staged. Other ranks may hand in host memory where this rank's looks like it, and then know nothing of
/// chunks.
std::size_t chunk_bytes(const Asked& asked) {
  return asked.stages_devices ? std::numeric_limits<std::size_t>::max() / 4 : asked.device_slot_bytes;
}

}  // namespace

void DevicePath::State::make_pool(Context& c) {
  is_pool_made = true;
  nodes = c.topology().nodes();
  if (c.asked().stages_devices)
    why_not = "ACCDP_GPU_PATH=staged";
  else if (c.shape().node_ranks() > static_cast<int>(kMostSources))
    why_not = "more than " + std::to_string(kMostSources) + " ranks on a node";
  else
    why_not.clear();
  if (!why_not.empty()) return;
  pool = std::make_unique<Pool>(c, device, c.asked().device_slot_bytes);
  why_not = pool->why_not();
  if (pool->is_usable()) load_reductions(), load_copies();
}

Pool* DevicePath::State::shared_pool(Context& c) {
  if (!is_pool_made) make_pool(c);
  return pool && pool->is_shared() ? pool.get() : nullptr;
}

void DevicePath::State::set_up(Context& c) {
  before = make_event();
  if (!is_pool_made) make_pool(c);
  if (pool && (!pool->is_shared() || nodes > 1)) set_up_hierarchy(c);
  if (!why_not.empty()) pool.reset();
  if (!pool) own_stream = make_stream();
  after = make_event();
}

/// All ranks find the same: whether the nodes' pools are good for it, and how.
void DevicePath::State::set_up_hierarchy(Context& c) {
  struct Verdict {
    bool is_usable, mpi_takes_memory;
    int groups, largest_group;
    std::size_t host_slot_bytes;
  };
  const Topology& t = c.topology();
  const bool takes = nodes > 1 && c.wire_takes_device_memory();
  Verdict all{pool->is_usable(), takes, 0, 0, c.slot_bytes()};
  if (all.is_usable) all.groups = pool->groups().count(), all.largest_group = pool->groups().largest();
  if (nodes > 1 && t.is_leader()) {
    std::vector<Verdict> theirs(nodes, all);
    const Verdict mine = all;
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing;
    for (int node = 0; node < nodes; ++node) {
      if (node == t.node()) continue;
      incoming.push_back({t.leader(node), std::as_writable_bytes(std::span(&theirs[node], 1))});
      outgoing.push_back({t.leader(node), std::as_bytes(std::span(&mine, 1))});
    }
    c.exchange(incoming, outgoing);
    for (const Verdict& other : theirs)
      all = {all.is_usable && other.is_usable, all.mpi_takes_memory && other.mpi_takes_memory,
             std::max(all.groups, other.groups), std::max(all.largest_group, other.largest_group),
             std::min(all.host_slot_bytes, other.host_slot_bytes)};
  }
  const int leader = t.local_of(t.leader(t.node()));
  std::memcpy(c.open(sizeof all), &all, sizeof all);
  c.publish();
  c.await(leader);
  std::memcpy(&all, c.slot(leader), sizeof all);

  // Groups of a node meet in host memory; and a kernel sums up what so many nodes sent at the most.
  const bool by_mpi = all.mpi_takes_memory && all.groups == 1 && nodes <= static_cast<int>(kMostSources);
  if (!all.is_usable) {
    if (why_not.empty()) why_not = "ranks of another node cannot share device memory";
    return;
  }
  if (all.largest_group == 1 && !by_mpi) {
    if (why_not.empty()) why_not = "the ranks are on several nodes";
    return;
  }
  why_not.clear();
  std::size_t most = std::min(pool->slot_bytes(), kLongestSegment);
  if (all.groups > 1) most = std::min(most, all.host_slot_bytes);
  hierarchy.emplace(GpuHierarchy{by_mpi, most, make_stream(true), {}, {}, {}});
}

DevicePath::DevicePath(std::shared_ptr<Group> group) : group_(std::move(group)), state_(std::make_unique<State>()) {}

/// The end of what CUDA made may come at any time, on any thread: while others capture, and have other devices.
DevicePath::~DevicePath() {
  if (state_->device < 0) return;  // not used: CUDA, which may not be there, is left alone
  const std::optional<DeviceGuard> guard = guard_if_possible(state_->device);
  if (!settle()) keep_for_ever(std::move(state_));
  state_.reset();
}

DeviceRoute::Asker DevicePath::asker() const noexcept {
  return [](int device, const std::function<bool()>& question) {
    const std::optional<DeviceGuard> guard = guard_if_possible(device);
    return question();
  };
}

bool DevicePath::settle(bool has_failed) noexcept {
  if (state_->device < 0) return true;
  const std::optional<DeviceGuard> guard = guard_if_possible(state_->device);
  // A call may also have been refused, or have failed on this rank alone: others still read what is in the pool.
  if (has_failed && group_->may_miss_ranks()) state_->has_failed = true;
  const auto is_done = [&] { return accdp::is_done(state_->own_stream.get()); };
  if (state_->own_stream && !outlast_work(state_->own_stream.get(), wait_for_ranks(*group_), is_done)) return false;
  return !state_->pool || state_->pool->settle(state_->has_failed);
}

std::string DevicePath::describe() const {
  if (!state_->pool || !state_->pool->is_usable())
    return state_->is_pool_made ? "staged: " + state_->why_not : state_->why_not;
  const Pool& pool = *state_->pool;
  const int groups = pool.groups().count();
  std::string text = groups > 1 && groups < pool.gpus().count() ? std::to_string(groups) + " islands of peer GPUs"
                     : groups > 1                               ? std::to_string(groups) + " GPUs apart"
                     : pool.is_one_gpu()                        ? "shared GPU"
                                                                : "peer GPUs";
  if (state_->nodes > 1) text += " on each of " + std::to_string(state_->nodes) + " nodes";
  text += pool.uses_events() ? ", ordered by events" : ", ordered by the host (" + pool.why_no_events() + ")";
  if (state_->hierarchy)
    text += state_->hierarchy->by_mpi_on_device ? ", joined by MPI on device memory" : ", joined through host memory";
  return text;
}

/// The others are about to wait for this rank.
template <class Work>
auto DevicePath::telling_others(const char* what, Work work) {
  try {
    return work();
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    group_->abort(std::string(what) + ": " + error.what());
    std::rethrow_exception(named(std::current_exception(), group_->here(), what));
  }
}

void DevicePath::admit(int device, std::uintptr_t stream) {
  const auto expect = [&](int first) {
    if (first != device)
      throw UsageError("a buffer on device " + std::to_string(device) + ": expected device " + std::to_string(first) +
                       ", which this group's first call used");
  };
  int first = state_->device;
  if (first >= 0) expect(first);
  telling_others("its device cannot be used", [&] {
    const DeviceGuard guard(device);  // a stream may be the current device's default
    refuse_capture(reinterpret_cast<cudaStream_t>(stream));
  });
  if (first < 0 && !state_->device.compare_exchange_strong(first, device)) expect(first);  // of another thread's call
}

std::unique_ptr<Collectives> DevicePath::collectives(int device, std::uintptr_t stream) {
  return std::make_unique<DeviceCollectives>(shared_from_this(), device, stream);
}

struct StreamMark::Passed {
  Event event = make_event();
};

StreamMark::StreamMark(int device, std::uintptr_t stream) : device_(device) {
  const DeviceGuard guard(device);
  passed_ = std::make_unique<Passed>();
  record(passed_->event, reinterpret_cast<cudaStream_t>(stream));
}

StreamMark::~StreamMark() {
  const std::optional<DeviceGuard> guard = guard_if_possible(device_);
  passed_.reset();
}

/// Of copies: the stream that they are made on, and it, if it is nobody else's.
struct DevicePath::Order {
  cudaStream_t stream;
  Stream own;
};

std::unique_ptr<HostCopies> DevicePath::fetch(int device, std::uintptr_t stream, const std::vector<DeviceBlock>& blocks,
                                              Owners owners) {
  return telling_others("memory of its device cannot be fetched", [&] {
    return copies_of(device, {reinterpret_cast<cudaStream_t>(stream), {}}, blocks, std::move(owners));
  });
}

std::unique_ptr<HostCopies> DevicePath::fetch_behind(const StreamMark& mark, const std::vector<DeviceBlock>& blocks,
                                                     Owners owners) {
  return telling_others("memory of its device cannot be fetched", [&] {
    const DeviceGuard guard(mark.device_);
    Stream own = make_stream();
    wait_for(own.get(), mark.passed_->event);
    const cudaStream_t stream = own.get();
    return copies_of(mark.device_, {stream, std::move(own)}, blocks, std::move(owners));
  });
}

std::unique_ptr<HostCopies> DevicePath::copies_of(int device, Order order, const std::vector<DeviceBlock>& blocks,
                                                  Owners owners) {
  const RoomCopies::Path path{[self = shared_from_this()](Context& c) { return self->state_->shared_pool(c); },
                              [self = shared_from_this()] { return self->settle(true); }};
  return std::make_unique<RoomCopies>(group_, state_->workshop, path, device, order.stream, std::move(order.own),
                                      blocks, std::move(owners));
}

void DevicePath::await(int device, std::uintptr_t stream) {
  admit(device, stream);
  await_for_wire(*group_, device, stream);
}

DeviceCollectives::DeviceCollectives(std::shared_ptr<DevicePath> path, int device, std::uintptr_t stream,
                                     DeviceRoute::Owners owners)
    : path_(std::move(path)), device_(device), stream_(stream), owners_(std::move(owners)) {
  path_->admit(device, stream);
}

void DeviceCollectives::end() noexcept {
  if (std::exchange(has_failed_, false) && owners_ && !path_->settle(true)) keep_for_ever(std::move(owners_));
}

MemoryKind DeviceCollectives::memory(const Asked& asked) const {
  return asked.stages_devices ? MemoryKind::kHost : MemoryKind::kDevice;
}

Collectives& DeviceCollectives::in_rank_order() {
  in_rank_order_ = true;
  return *this;
}

/// Runs one of two ways between "after the caller's stream" and "before what follows on it": through the pool, if all
/// ranks share it, or between GPUs and hosts.
template <class Shared, class Between>
void DeviceCollectives::run(Context& c, Shared shared, Between between) {
  DevicePath::State& state = *path_->state_;
  const DeviceScope scope(*path_->group_, device_, [&c] { return c.what(); });
  const auto callers = reinterpret_cast<cudaStream_t>(stream_);
  if (!state.is_set_up()) state.set_up(c);
  try {
    record(state.before, callers);
    wait_for(state.stream(), state.before);
    if (state.is_shared())
      shared(*state.pool);
    else
      between(state);
    record(state.after, state.stream());
    wait_for(callers, state.after);
    if (state.pool) state.pool->hand_over_reads();  // behind what the caller waits for
  } catch (...) {
    state.has_failed = has_failed_ = true;
    if (c.has_wire()) state.staging.leave_to_wire();
    throw;
  }
}

template <class Algorithm>
void DeviceCollectives::whole(const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs, Algorithm algorithm) {
  DevicePath::State& state = *path_->state_;
  state.staging.fetch(ins, outs, state.stream());
  algorithm(state.staging.ins(), state.staging.outs());
  state.staging.deliver(outs, state.stream());
}

void DeviceCollectives::bcast(Context& c, Bytes data, int root) {
  const bool is_root = c.topology().rank() == root;
  run(
      c, [&](Pool& pool) { bcast_shared_gpu(c, pool, data, root); },
      [&](DevicePath::State& state) {
        if (state.goes_over_gpus(c, data.size())) return bcast_over_gpus(c, *state.pool, *state.hierarchy, data, root);
        state.staging.in_chunks(is_root ? ConstBytes(data) : ConstBytes(), is_root ? Bytes() : data,
                                chunk_bytes(c.asked()), state.stream(), [&](ConstBytes in, Bytes out) {
                                  // A root's chunk is only read.
                                  if (is_root) out = {const_cast<std::byte*>(in.data()), in.size()};
                                  on_host().bcast(c, out, root);
                                });
      });
}

void DeviceCollectives::reduce_to(Context& c, ConstBytes in, Bytes out, const Reduction& how, int receiver) {
  run(
      c, [&](Pool& pool) { reduce_shared_gpu(c, pool, in, out, how, receiver, in_rank_order_); },
      [&](DevicePath::State& state) {
        if (state.goes_over_gpus(c, in.size(), in_rank_order_))
          return (in_rank_order_ ? reduce_in_rank_order_over_gpus : reduce_over_gpus)(c, *state.pool, *state.hierarchy,
                                                                                      in, out, how, receiver);
        const bool wanted = receiver < 0 || receiver == c.topology().rank();
        state.staging.in_chunks(
            in, wanted ? out : Bytes(), chunk_bytes(c.asked()), state.stream(),
            [&](ConstBytes part, Bytes result) { on_host().reduce_to(c, part, result, how, receiver); });
      });
}

void DeviceCollectives::allgather(Context& c, ConstBytes in, const std::vector<Bytes>& outs) {
  run(
      c, [&](Pool& pool) { allgather_shared_gpu(c, pool, in, outs); },
      [&](DevicePath::State& state) {
        if (state.goes_over_gpus(c, total_bytes(outs)))
          return allgather_over_gpus(c, *state.pool, *state.hierarchy, in, outs);
        whole({in}, outs, [&](const auto& from, const auto& to) { on_host().allgather(c, from[0], to); });
      });
}

void DeviceCollectives::reduce_scatter(Context& c, const std::vector<ConstBytes>& ins, Bytes out,
                                       const Reduction& how) {
  run(
      c, [&](Pool& pool) { reduce_scatter_shared_gpu(c, pool, ins, out, how, in_rank_order_); },
      [&](DevicePath::State& state) {
        if (state.goes_over_gpus(c, total_bytes(ins), in_rank_order_))
          return (in_rank_order_ ? reduce_scatter_in_rank_order_over_gpus : reduce_scatter_over_gpus)(
              c, *state.pool, *state.hierarchy, ins, out, how);
        whole(ins, {out}, [&](const auto& from, const auto& to) { on_host().reduce_scatter(c, from, to[0], how); });
      });
}

void DeviceCollectives::gather(Context& c, ConstBytes in, const std::vector<Bytes>& outs, int root) {
  run(
      c, [&](Pool& pool) { gather_shared_gpu(c, pool, in, outs, root); },
      [&](DevicePath::State& state) {
        if (state.moves_over_gpus(c)) return gather_over_gpus(c, *state.pool, *state.hierarchy, in, outs, root);
        whole({in}, outs, [&](const auto& from, const auto& to) { on_host().gather(c, from[0], to, root); });
      });
}

void DeviceCollectives::scatter(Context& c, const std::vector<ConstBytes>& ins, Bytes out, int root) {
  run(
      c, [&](Pool& pool) { scatter_shared_gpu(c, pool, ins, out, root); },
      [&](DevicePath::State& state) {
        if (state.moves_over_gpus(c)) return scatter_over_gpus(c, *state.pool, *state.hierarchy, ins, out, root);
        whole(ins, {out}, [&](const auto& from, const auto& to) { on_host().scatter(c, from, to[0], root); });
      });
}

void DeviceCollectives::alltoall(Context& c, const std::vector<ConstBytes>& ins, const std::vector<Bytes>& outs) {
  run(
      c, [&](Pool& pool) { alltoall_shared_gpu(c, pool, ins, outs); },
      [&](DevicePath::State& state) {
        if (state.moves_over_gpus(c)) return alltoall_over_gpus(c, *state.pool, *state.hierarchy, ins, outs);
        whole(ins, outs, [&](const auto& from, const auto& to) { on_host().alltoall(c, from, to); });
      });
}

}  // namespace accdp
