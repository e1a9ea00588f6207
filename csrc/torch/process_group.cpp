#include "torch/process_group.hpp"

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <cstdio>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace accdp::torch_backend {
namespace {

constexpr std::chrono::milliseconds kLook{200};  // whether somebody wants to interrupt a long wait

using Known = std::vector<c10::weak_intrusive_ptr<ProcessGroupAccdp>>;
Known& known() {
  static auto* const instance = new Known;
  return *instance;
}

std::int64_t elements(at::TensorList tensors) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

}  // namespace

ProcessGroupAccdp::ProcessGroupAccdp(int rank, int size, std::shared_ptr<Group> group,
                                     c10::intrusive_ptr<BackendOptions> options, std::shared_ptr<DeviceRoute> route,
                                     c10::DeviceType device_type, Origin origin)
    : Backend(rank, size),
      group_(std::move(group)),
      options_(std::move(options)),
      origin_(std::move(origin)),
      devices_(std::move(route), device_type) {
  init();
}

ProcessGroupAccdp::~ProcessGroupAccdp() { let_go(); }

void ProcessGroupAccdp::let_go() noexcept {
  if (!group_ || group_->is_inherited()) return;
  if (!is_shut_down_)
    without_gil([this] {
      try {
        shutdown();
      } catch (const std::exception& error) {  // who drops a group cannot be told otherwise
        if (!raised_later(std::current_exception())) TORCH_WARN("accdp: the end of a process group: ", error.what());
      }
    });
  group_.reset();
  origin_.store.reset();
  coalesced_.clear();
}

void ProcessGroupAccdp::remember(const c10::intrusive_ptr<ProcessGroupAccdp>& made) {
  std::erase_if(known(), [](const auto& group) { return group.expired(); });
  known().emplace_back(made);
}

std::vector<c10::intrusive_ptr<ProcessGroupAccdp>> ProcessGroupAccdp::open() {
  std::vector<c10::intrusive_ptr<ProcessGroupAccdp>> found;
  for (const auto& group : known())
    if (auto held = group.lock()) found.push_back(std::move(held));
  // Not in the loop: who drops the last reference to one gives up the GIL, and others may change what is known.
  std::erase_if(found, [](const auto& group) { return bool(group->is_shut_down_); });
  return found;
}

void ProcessGroupAccdp::setTimeout(Milliseconds timeout) {
  TORCH_CHECK_VALUE(timeout.count() > 0, "rank ", rank_, " of ", size_, ": timeout: expected 1 ms or more, got ",
                    timeout.count(), " ms");
  options_->timeout = timeout;
  group_->set_timeout_s(timeout.count() * 1e-3);
}

std::exception_ptr ProcessGroupAccdp::failure() const {
  try {
    group_->throw_if_failed();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

c10d::ErrorType ProcessGroupAccdp::getError() {
  try {
    group_->throw_if_failed();
  } catch (const PeerTimeout&) {
    return c10d::ErrorType::TIMEOUT;
  } catch (const PeerDied&) {
    return c10d::ErrorType::REMOTE_ERROR;
  } catch (const Error&) {
    return c10d::ErrorType::COMM_ERROR;
  }
  return c10d::ErrorType::SUCCESS;
}

void ProcessGroupAccdp::abort_because(const std::string& reason) {
  if (group_->is_inherited()) return;
  group_->abort(reason);
  stop_threads();
}

/// The one that moves messages, too: at the interpreter's end a tensor that it lets go would want the GIL in vain,
/// which ends the process by SIGABRT; and whoever drops the group's last reference with the GIL would wait for it for
/// ever.
void ProcessGroupAccdp::stop_threads() {
  queue_->stop(failure());
  without_gil([this] { group_->post_office().retire(); });
  callbacks_->stop();
}

/// Not less than a moment, in which what has come is seen.
ProcessGroupAccdp::Milliseconds ProcessGroupAccdp::left_until(Clock::time_point end) {
  return std::max(kLook, std::chrono::duration_cast<Milliseconds>(end - Clock::now()));
}

ProcessGroupAccdp::Milliseconds ProcessGroupAccdp::default_timeout() const {
  const std::chrono::duration<double> timeout(std::min(group_->default_timeout_s(), kEndlessS));
  return std::chrono::duration_cast<Milliseconds>(timeout);
}

void ProcessGroupAccdp::shutdown() {
  is_handling_exception() ? shutdown_briefly() : shutdown_within(default_timeout());
}

void ProcessGroupAccdp::shutdown_briefly(Milliseconds most) { shutdown_within(std::min(most, default_timeout())); }

void ProcessGroupAccdp::shutdown_within(Milliseconds most) {
  if (group_->is_inherited()) return;  // neither the group nor the queue's threads are of this process
  const auto end = Clock::now() + most;
  std::exception_ptr interruption;
  try {
    const bool is_in_handler = is_in_interrupt_check();
    if (queue_->runs_here() || group_->post_office().is_driven_here() ||
        (is_in_handler && !queue_->drain(Milliseconds(0))))
      group_->abort("left from a signal handler, in the middle of an operation");
    else if (!drain(most))  // the others may come late, or may have left
      group_->abort("left while operations were under way");
    else
      settle(is_in_handler ? std::min<Milliseconds>(kBriefly, most) : left_until(end));
  } catch (...) {
    interruption = translated(std::current_exception());
    group_->abort("was interrupted while operations were under way");
  }
  stop_threads();
  devices_.finish();
  group_->close();
  is_shut_down_ = true;
  if (interruption) std::rethrow_exception(interruption);
}

bool ProcessGroupAccdp::drain(Milliseconds most) {
  const Deadline end(std::chrono::duration<double>(most).count());
  const Deadline brief(std::chrono::duration<double>(kBriefly).count());
  while (!queue_->drain(std::min(kLook, most))) {
    if (end.passed() || (brief.passed() && getError() != c10d::ErrorType::SUCCESS)) return false;
    check_interrupt();
  }
  return true;
}

/// Messages that nobody waited for: what a peer counts on goes on, and receives that nobody has answered end.
void ProcessGroupAccdp::settle(Milliseconds most) {
  try {
    group_->settle(seconds(most));
  } catch (const Interrupted&) {
    throw;
  } catch (const UsageError& unanswered) {
    TORCH_WARN("accdp: ", unanswered.what());
  } catch (const Error&) {
    // Their works tell.
  }
}

void ProcessGroupAccdp::startCoalescing() {
  decltype(coalesced_) left;  // by a manager that an exception ended; their tensors are let go without the lock
  std::lock_guard lock(coalescing_mutex_);
  coalescing_ = true;
  left.swap(coalesced_);
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::endCoalescing() {
  std::lock_guard lock(coalescing_mutex_);
  coalescing_ = false;
  return BatchWork::of(rank_, std::exchange(coalesced_, {}), callbacks_);
}

void ProcessGroupAccdp::record(const Plan& plan) {
  if (!at::hasCallbacks()) return;
  const at::TensorList any = plan.inputs.empty() ? plan.outputs : plan.inputs;
  RECORD_PARAM_COMMS_DATA(std::make_tuple(static_cast<int64_t>(sequence_.load()), false),
                          std::make_tuple(pg_uid_, pg_desc_), plan.inputs.vec(), plan.outputs.vec(), rank_, plan.call(),
                          elements(plan.inputs), elements(plan.outputs), any.empty() ? at::kByte : any[0].scalar_type(),
                          std::vector<int64_t>(), std::vector<int64_t>(), -1, -1, size_);
}

c10::Device ProcessGroupAccdp::place_of(const Plan& plan) const {
  c10::Device place(c10::kCPU);
  bool is_first = true;
  for (const at::TensorList list : {plan.inputs, plan.outputs})
    for (const at::Tensor& tensor : list) {
      const c10::Device device = tensor.device();
      if (!is_first && device != place && !(plan.is_mixed && (device.is_cpu() || place.is_cpu())))
        checks_of(plan.call()).fail("tensors are on " + place.str() + " and " + device.str() + ", expected one device");
      if (is_first || !device.is_cpu()) place = device;
      is_first = false;
    }
  return place;
}

/// The others are in the operation.
void ProcessGroupAccdp::tell_failure(Group& group, const char* call) {
  const auto tell = [&](const char* why) { group.abort(std::string(call) + " failed: " + why); };
  try {
    throw;
  } catch (const Error&) {  // of which the group knows
    throw;
  } catch (const c10::Error& error) {
    tell(error.what_without_backtrace());
    throw;
  } catch (const std::exception& error) {
    tell(error.what());
    throw;
  }
}

c10::intrusive_ptr<Work> ProcessGroupAccdp::launch_work(Plan plan, c10::Device place,
                                                        std::function<void(Group&, double, const Execution&)> run) {
  group_->check_process();  // the queue's threads are not forked along
  if (would_wait_for_itself(plan))
    throw UsageError("rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": " + plan.call() + ' ' +
                     kInHandler);
  std::shared_ptr<DeviceCall> call;
  if (!place.is_cpu()) call = devices_.begin(place, plan.is_async);
  if (defers_ && is_in_callback() && !warned_of_callbacks_.exchange(true))
    std::fprintf(stderr,
                 "accdp: rank %d of group %s begins %s in a future's callback: its place among collectives that others "
                 "begin meanwhile is chance, which ranks may disagree on; with ACCDP_ASYNC_OPS=off it is not "
                 "(docs/sharp_bits.md)\n",
                 rank_, group_->name().c_str(), plan.call());
  const std::uint64_t sequence = ++sequence_;
  record(plan);
  const c10::intrusive_ptr<Work> work = c10::make_intrusive<QueuedWork>(
      queue_, rank_, plan.type, plan.title, plan.inputs.vec(), plan.outputs.vec(), sequence);
  if (!plan.nested.empty()) work->set_nested_outputs(std::move(plan.nested));
  const double timeout_s = seconds(plan.timeout);
  auto run_or_tell = [group = group_, timeout_s, run = std::move(run), name = plan.call()](const Execution& way) {
    carry_out(*group, name, [&] { run(*group, timeout_s, way); });
  };
  Task task{work, {}};
  if (!call) {
    task.run = [run = std::move(run_or_tell)] { run({host_collectives()}); };
  } else {
    DeviceRoute& route = devices_.route();  // of the group, which waits for its calls before it ends
    call->carry([run = std::move(run_or_tell), &route, place, handle = call->handle()] {
      const auto via = route.collectives(place.index(), handle);
      run({*via, &route, place.index(), handle});
    });
    work->set_call(call);
    task.run = [call] { call->run(); };
  }
  const auto give_up = [&](const std::string& why) {  // the others wait for it
    group_->abort(std::string(plan.call()) + why);
  };
  try {
    runs_later(plan) ? queue_->run_later(std::move(task)) : queue_->run_now(task);
  } catch (const Interrupted&) {
    give_up(" was interrupted before its turn came");
    throw;
  } catch (const UsageError&) {
    if (!is_shut_down_) group_->throw_if_failed();  // abort() has stopped the queue
    throw;
  } catch (const std::system_error& error) {
    give_up(std::string(" has no thread to run on: ") + error.what());
    group_->throw_if_failed();
  }
  std::lock_guard lock(coalescing_mutex_);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::barrier(const c10d::BarrierOptions& options) {
  in_torchs_terms([&] {
    group_->check_process();
    devices_.check_current_stream();  // a graph would not wait again
  });
  return launch({c10d::OpType::BARRIER, "accdp:barrier", {}, {}, options.timeout, options.asyncOp},
                [](Group& group, double timeout_s, const Execution&) { group.barrier(timeout_s); });
}

Machine ProcessGroupAccdp::measure() {
  launch({c10d::OpType::UNKNOWN, "accdp:measure", {}, {}, c10d::kUnsetTimeout, false},
         [](Group& group, double timeout_s, const Execution&) { group.measure(timeout_s); });
  return group_->machine();
}

void ProcessGroupAccdp::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const Milliseconds timeout = options.timeout == c10d::kUnsetTimeout ? default_timeout() : options.timeout;
  const auto started = Clock::now();
  in_torchs_terms([&] { group_->check_process(); });
  if (queue_->runs_here()) checks_of("monitored_barrier").fail(kInHandler);
  in_torchs_terms([&] {
    if (drain(timeout)) return;
    group_->throw_if_failed();
    TORCH_CHECK(false, "monitoredBarrier: earlier operations did not finish before the timeout");
  });
  const double left = seconds(timeout) - seconds_since(started);
  try {
    group_->monitored_barrier(wait_all_ranks, std::max(0.0, left));
  } catch (...) {
    std::rethrow_exception(translated(std::current_exception()));
  }
}

// ---- messages -----------------------------------------------------------------------------------

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::follow(const c10::intrusive_ptr<MessageWork>& work, MessageHandle message,
                                                     std::function<void()> arrived) {
  MessageWork::follow(work, callbacks_, std::shared_ptr<PostOffice>(group_, &group_->post_office()), std::move(message),
                      group_->default_timeout_s(), std::move(arrived));
  std::lock_guard lock(coalescing_mutex_);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

// Messages of a device go through host memory of their own, because they go on beside collectives. A send waits
// for its data to be there; a receive copies what came on a stream that the device's current one may be made to wait
// for. Where MPI gets the device's memory itself, either waits for what the current stream holds.

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::send(Tensors& tensors, int to, int tag) {
  const Checks checks = checks_of("send");
  checks.single(tensors, "tensor list");
  checks.reachable(tensors, devices_.type());
  checks.dense(tensors);
  record({c10d::OpType::SEND, "accdp:send", tensors, {}, c10d::kUnsetTimeout, true});
  auto work = c10::make_intrusive<MessageWork>(rank_, c10d::OpType::SEND, "accdp:send", tensors, tensors, 0);
  const Operand reads(tensors[0], Operand::kRead);
  try {
    if (tensors[0].is_cpu()) {
      MessageHandle message = group_->send(reads.bytes(), to, tag, Group::kUnlimited);
      return follow(work, std::move(message), [reads] {});
    }
    const auto call = devices_.begin(tensors[0].device(), false);
    if (group_->post_office().takes_device_memory(reads.bytes().size(), to)) {
      devices_.route().await(call->device().index(), call->callers_handle());
      return follow(work, group_->send(reads.bytes(), to, tag, Group::kUnlimited), [reads] {});
    }
    std::shared_ptr<HostCopies> copies =
        devices_.route().fetch(call->device().index(), call->handle(), {{reads.bytes(), true, false}});
    MessageHandle message = group_->send(copies->blocks()[0], to, tag, Group::kUnlimited);
    return follow(work, std::move(message), [copies] {});
  } catch (...) {
    std::rethrow_exception(translated(std::current_exception()));
  }
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::receive(Tensors& tensors, int from, int tag, c10d::OpType type,
                                                      const char* title) {
  const Checks checks = checks_of(title + sizeof "accdp:" - 1);
  checks.single(tensors, "tensor list");
  checks.reachable(tensors, devices_.type());
  checks.dense(tensors);
  record({type, title, {}, tensors, c10d::kUnsetTimeout, true});
  auto work = c10::make_intrusive<MessageWork>(rank_, type, title, tensors, tensors, 0);
  const Operand writes = checks.operand(tensors[0], Operand::kWrite);
  try {
    if (tensors[0].is_cpu()) {
      MessageHandle message = group_->receive(writes.bytes(), from, tag, Group::kUnlimited);
      return follow(work, std::move(message), [writes] { writes.give_back(); });
    }
    const auto call = devices_.begin(tensors[0].device(), true);
    if (group_->post_office().takes_device_memory(writes.bytes().size(), from)) {
      call->carry([writes] { writes.give_back(); });
      work->set_call(call);
      devices_.route().await(call->device().index(), call->callers_handle());
      return follow(work, group_->receive(writes.bytes(), from, tag, Group::kUnlimited), [call] { call->run(); });
    }
    std::shared_ptr<HostCopies> copies =
        devices_.route().fetch(call->device().index(), call->handle(), {{writes.bytes(), false, true}});
    const Bytes room = copies->blocks()[0];
    call->carry([copies, writes] {
      copies->deliver();
      writes.give_back();
    });
    work->set_call(call);
    return follow(work, group_->receive(room, from, tag, Group::kUnlimited), [call] { call->run(); });
  } catch (...) {
    std::rethrow_exception(translated(std::current_exception()));
  }
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::recv(Tensors& tensors, int from, int tag) {
  checks_of("recv").root(from, size_, "source rank");
  return receive(tensors, from, tag, c10d::OpType::RECV, "accdp:recv");
}

ProcessGroupAccdp::WorkPtr ProcessGroupAccdp::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, -1, tag, c10d::OpType::RECVANYSOURCE, "accdp:recvAnySource");
}

}  // namespace accdp::torch_backend
