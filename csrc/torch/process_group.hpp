#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <map>
#include <memory>

#include "base/settings.hpp"
#include "coll/group.hpp"
#include "torch/device_call.hpp"
#include "torch/host_view.hpp"
#include "torch/message_work.hpp"

namespace accdp::torch_backend {

/// As torch's. Python copies those of a group for its parts.
struct BackendOptions final : c10d::Backend::Options {
  using c10d::Backend::Options::Options;
};

/// Where the parts of a group meet, and a name for it that is equal on its ranks and nobody else's. (Its group_name
/// need not be: torch counts names, and ranks may have been in different numbers of groups.)
struct Origin {
  c10::intrusive_ptr<c10d::Store> store;  ///< until the group ends
  std::string label;
  std::pair<int, int> seat;  ///< this process's rank and size in the world that it began in
};

/// The c10d backend: turns c10d's calls into the group's collectives. Translation of tensors, dtypes and
/// operations, the order of asynchronous calls, Work; nothing else.
class ProcessGroupAccdp : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Lists = std::vector<Tensors>;
  using Milliseconds = std::chrono::milliseconds;

  /// route: to tensors on devices of that type; none where only host memory is moved.
  ProcessGroupAccdp(int rank, int size, std::shared_ptr<Group> group, c10::intrusive_ptr<BackendOptions> options,
                    std::shared_ptr<DeviceRoute> route, c10::DeviceType device_type, Origin origin);
  ~ProcessGroupAccdp() override;
  /// When nobody has the group any more. What knows of it weakly, as open() does, keeps the rest until later.
  void release_resources() override { let_go(); }
  /// The same, and open() has it. Under the GIL, as open().
  template <class... Arguments>
  static c10::intrusive_ptr<ProcessGroupAccdp> make(Arguments&&... arguments) {
    auto made = c10::make_intrusive<ProcessGroupAccdp>(std::forward<Arguments>(arguments)...);
    remember(made);
    return made;
  }
  /// Those of this process that somebody has and that were not shut down, the oldest first. torch lists only those that
  /// it made by its own functions.
  static std::vector<c10::intrusive_ptr<ProcessGroupAccdp>> open();

  const std::string getBackendName() const override { return "accdp"; }
  /// A copy, which whoever splits the group changes.
  c10::intrusive_ptr<Options> getBackendOptions() override { return c10::make_intrusive<BackendOptions>(*options_); }
  void setTimeout(Milliseconds timeout) override;
  bool supportsSplitting() const override { return true; }
  /// Called by all ranks that it names, in the same order; others get none.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;
  bool supportsShrinking() const override { return true; }
  /// Called by all ranks but those that it names, which may be dead.
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
                                           const c10::intrusive_ptr<Options>& options) override;
  /// Called by the ranks of several groups, which meet in the store, with the size of all together.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<Options>& options, const int& rank,
                                          const int& size) override;
  const Origin& origin() const { return origin_; }
  /// Broadcasts and reductions as that group's.
  void behave_like(const ProcessGroupAccdp& other);
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void enableCollectivesTiming() override {}  // works tell no durations
  c10d::ErrorType getError() override;

  // Works launched between the two become one.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  /// Overrides where torch has it, from 2.14 on. The output counts on the root.
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options);
  WorkPtr scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  void abort() override { abort_because("abort() was called"); }
  void abort_because(const std::string& reason);
  /// Operations that nobody waited for may take their time, but not when the caller is on its way out with an
  /// exception.
  void shutdown() override;
  static constexpr std::chrono::seconds kBriefly{5};
  /// Those have so long, at most the group's time-out, before the group is given up.
  void shutdown_briefly(Milliseconds most = kBriefly);

  /// How a broadcast compresses; names as in coll/stream_codec.hpp.
  struct StreamCall {
    std::string codec = "none";
    std::size_t chunk_bytes = 0;
    std::string algorithm = "";
    ErrorBound bound = {};
    std::uint64_t label = 0;

    StreamOptions options() const { return stream_options(codec, chunk_bytes, algorithm, bound, label); }
  };
  /// How data of devices goes; empty where only host memory is moved.
  std::string device_path() const { return devices_.type() ? devices_.route().describe() : ""; }
  bool has_ended(int rank) const { return group_->has_ended(rank); }
  void set_deterministic(bool on) { group_->set_deterministic(on); }
  /// As Group::measure(), in the order of the group's operations.
  Machine measure();
  /// Of broadcast() from now on. Replicas must stay alike, so with a bound the root takes the decoded values too.
  void set_bcast(StreamCall call);
  // These throw the core's own errors, and only why they cannot begin; the operation's are in the work, with which
  // `rows` or `report` is filled.
  /// As many numbers of each rank, an even number. Nobody else gathers so few of their datatype: who has called
  /// something else meanwhile is told.
  c10::intrusive_ptr<Work> table(std::vector<std::int64_t> row, std::shared_ptr<std::vector<std::int64_t>> rows);
  /// All tensors as one stream. references: none, or one per tensor, undefined where there is none.
  c10::intrusive_ptr<Work> bcast_stream(Tensors tensors, Tensors references, int root, const StreamCall& call,
                                        bool is_async, Milliseconds timeout, std::shared_ptr<StreamReport> report);

  /// Of one dense tensor in place, whose parts of `counts` elements are tensors of their own to a relative bound.
  /// residual: undefined, or float32 of as many elements (coll/allreduce_stream.hpp).
  c10::intrusive_ptr<Work> allreduce_stream(at::Tensor tensor, std::vector<std::int64_t> counts,
                                            const c10d::ReduceOp& op, const StreamCall& call, at::Tensor residual,
                                            bool is_async, Milliseconds timeout, std::shared_ptr<StreamReport> report);

  /// Make the backends of groups from this one; set by the Python side, which knows how ranks meet.
  struct Makers {
    std::function<c10::intrusive_ptr<c10d::Backend>(
        const c10::intrusive_ptr<ProcessGroupAccdp>& parent, const std::vector<int>& ranks, int rank,
        const c10::intrusive_ptr<Options>& options, const std::string& label)>
        split, shrink;
    std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<ProcessGroupAccdp>& parent,
                                                    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    const c10::intrusive_ptr<Options>& options)>
        merge;
  };
  static void set_makers(Makers makers);

 private:
  /// What is common to all collectives; tensors as the caller gave them, for as long as the call takes.
  struct Plan {
    c10d::OpType type;
    const char* title;  ///< profiler's name of the operation
    at::TensorList inputs, outputs;
    Milliseconds timeout;
    bool is_async;
    Lists nested = {};
    /// Some tensors may be in host memory while others are on a device.
    bool is_mixed = false;
    const char* call() const { return title + sizeof "accdp:" - 1; }
  };
  /// Does `run(Group&, double timeout_s, const Execution&)`, now or later. Host memory of a caller who waits anyway,
  /// with nothing ahead and nobody watching, makes no Work.
  template <class Run>
  WorkPtr launch(Plan plan, Run run) {
    const c10::Device place = place_of(plan);
    if (would_wait_for_itself(plan)) checks_of(plan.call()).fail(kInHandler);
    // In a forked process the queue may be locked by a thread that is not there.
    if (place.is_cpu() && !plan.is_async && !group_->is_inherited() && !is_watched() && !is_in_callback()) {
      const auto now = [&] {
        ++sequence_;
        carry_out(*group_, plan.call(), [&] { run(*group_, seconds(plan.timeout), Execution{host_collectives()}); });
      };
      if (queue_->try_now(now)) return done_;
    }
    const bool waits = !plan.is_async;
    WorkPtr work;
    try {
      work = launch_work(std::move(plan), place, std::move(run));
    } catch (...) {
      std::rethrow_exception(translated(std::current_exception()));
    }
    if (waits) work->wait();
    return work;
  }
  /// The same with a Work, however it is done. Throws the core's own errors, and only why it cannot begin: the
  /// operation's are in the work.
  c10::intrusive_ptr<Work> launch_work(Plan plan, c10::Device place,
                                       std::function<void(Group&, double timeout_s, const Execution&)> run);
  /// Tells the other ranks of errors that do not come from the group itself.
  template <class Run>
  static void carry_out(Group& group, const char* call, Run&& run) {
    try {
      run();
    } catch (...) {
      tell_failure(group, call);
    }
  }
  [[noreturn]] static void tell_failure(Group& group, const char* call);  ///< where one was caught
  static double seconds(Milliseconds timeout) { return timeout == c10d::kUnsetTimeout ? -1 : timeout.count() * 1e-3; }
  /// By a batch, by a profiler, or by torch's list of works that go into graphs.
  bool is_watched() const {
    return coalescing_ || at::hasCallbacks() || c10d::allow_inflight_collective_as_graph_input();
  }
  c10::Device place_of(const Plan& plan) const;
  /// In a signal handler that came into the middle of an operation, which ends after it.
  bool would_wait_for_itself(const Plan& plan) const { return !runs_later(plan) && queue_->runs_here(); }
  bool runs_later(const Plan& plan) const { return plan.is_async && defers_; }
  static constexpr const char* kInHandler = "called from a signal handler in the middle of another operation";
  Checks checks_of(const char* operation) const { return {operation, rank_, size_}; }
  WorkPtr launch_sparse(Tensors& tensors, const c10d::AllreduceOptions& options);
  WorkPtr gather_into(const char* where, const Tensors& outputs, const Tensors& inputs,
                      const c10d::AllgatherOptions& options);
  WorkPtr reduce_scatter_from(const char* where, const Tensors& outputs, const Tensors& inputs,
                              const c10d::ReduceScatterOptions& options);
  WorkPtr launch_reduce_scatter(const char* where, at::TensorList outputs, at::TensorList inputs,
                                const c10d::ReduceScatterOptions& options);
  WorkPtr receive(Tensors& tensors, int from, int tag, c10d::OpType type, const char* title);
  WorkPtr follow(const c10::intrusive_ptr<MessageWork>& work, MessageHandle message, std::function<void()> arrived);
  void record(const Plan& plan);
  static void remember(const c10::intrusive_ptr<ProcessGroupAccdp>& made);
  Milliseconds default_timeout() const;
  static Milliseconds left_until(Clock::time_point end);
  void shutdown_within(Milliseconds most);
  std::exception_ptr failure() const;  ///< what the group failed with, if it has
  bool drain(Milliseconds most);
  void settle(Milliseconds most);
  void stop_threads();
  void let_go() noexcept;

  std::shared_ptr<Group> group_;
  c10::intrusive_ptr<BackendOptions> options_;
  Origin origin_;
  std::mutex splits_mutex_;
  std::map<std::vector<int>, int> splits_;  ///< how often for the same ranks
  std::atomic<std::uint64_t> sequence_{0};
  std::mutex coalescing_mutex_;
  std::atomic<bool> coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
  StreamCall bcast_;
  Devices devices_;
  const bool defers_ = settings().async_ops == "on";  ///< whether callers need not wait for asynchronous collectives
  std::atomic<bool> warned_of_callbacks_{false};
  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::shared_ptr<Queue> callbacks_ = std::make_shared<Queue>();  ///< of messages' futures
  std::atomic<bool> is_shut_down_ = false;
  /// What says of an operation that it is done: to c10d none, as its own backends do; but where it has hooks, from
  /// torch 2.14 on, its flight recorder takes an operation without a Work for one that hangs.
#ifdef C10D_BACKEND_HAS_HOOKS
  const WorkPtr done_ = Work::done();
#else
  const WorkPtr done_;
#endif
};

}  // namespace accdp::torch_backend
