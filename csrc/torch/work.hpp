#pragma once
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/birthplace.hpp"
#include "torch/device_call.hpp"
#include "torch/tensors.hpp"

namespace accdp::torch_backend {

/// The exceptions of the core as those that torch's callers catch: ValueError, dist.DistBackendError, or whatever
/// the signal handler raised.
std::exception_ptr translated(std::exception_ptr error);
/// Where nothing can be thrown: what a signal handler raised, Python raises as soon as it can. Whether it was that.
bool raised_later(std::exception_ptr error) noexcept;
/// The call's value; what it throws is translated.
template <class Call>
auto in_torchs_terms(Call call) {
  try {
    return call();
  } catch (...) {
    std::rethrow_exception(translated(std::current_exception()));
  }
}

/// Whether this thread is in an `except` or `finally` of Python's that an exception came to.
bool is_handling_exception();

/// Whether this thread is in a callback of a work's future.
bool is_in_callback();

/// One operation. Done at once when it ran inline, else by the group's worker thread or whoever drives
/// its messages. On a device it is done, here, when it has been handed over: wait() returns then, and makes the current
/// stream wait for the rest.
class Work : public c10d::Work {
 public:
  Work(int rank, c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs, std::uint64_t sequence);
  /// One that has ended well, of nothing.
  static c10::intrusive_ptr<Work> done();
  /// In a process that was forked since, the tensors stay: a device's cannot be let go there.
  ~Work() override;

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  bool isCompleted() override;
  bool isSuccess() const override;
  void synchronize() override;
  void blockCurrentStream() override;
  Tensors result() override;
  const Tensors& outputs() const { return outputs_; }
  /// Of an operation on a device, the stream that it runs on.
  virtual std::optional<c10::Stream> stream() const { return call_ ? std::optional(call_->stream()) : std::nullopt; }
  /// Of one that is done: the current stream waits for what it handed over.
  virtual void join() {
    if (call_) call_->join_current_stream();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }
  void abort() override;

  /// Before a wait for it: has whoever can do it take it up, this thread perhaps. Throws the core's errors.
  virtual void prepare_wait(std::chrono::milliseconds) {}
  /// Waits until it is done; false where `timeout` is over before. Throws nothing that it failed with.
  bool wait_done(std::chrono::milliseconds timeout);
  /// Throws what it failed with in the core's own classes; wait() has those of torch.
  void throw_if_failed();
  /// Once; later calls change nothing. Its two halves: the first one says how it ended, to all where nobody has its
  /// future. Else wait() returns when the callbacks of that have, as a Gloo work's does: the second half, of who was
  /// the first to end it, calls them, which may take long.
  void complete(std::exception_ptr error = nullptr);
  bool end(std::exception_ptr error);
  void settle_future();
  bool is_done() const;       ///< as those see it too who have its future's value, or are in a callback of one
  bool wait_returns() const;  ///< at once
  bool has_future() const;    ///< that somebody asked for
  /// Operations with a list of outputs per rank have such a list of lists as their future's value.
  void set_nested_outputs(std::vector<Tensors> outputs) { nested_ = std::move(outputs); }
  /// It is an operation on tensors of a device. Before anybody else sees the work.
  void set_call(std::shared_ptr<DeviceCall> call) { call_ = std::move(call); }

 protected:
  /// Throws in a process that was forked since: it has not the thread that would end the work, and nobody may ever
  /// unlock the mutex there.
  void check_process() const;
  c10::IValue value() const;
  void settle(c10::ivalue::Future& future, const std::exception_ptr& error);

  Tensors outputs_;
  std::vector<Tensors> nested_;
  const std::uint64_t sequence_;
  const Birthplace birthplace_;
  std::shared_ptr<DeviceCall> call_;
  bool completing_ = false;
  bool ended_ = false;          ///< its operation is over, how is known, and who asks for a future gets its value
  std::exception_ptr failure_;  ///< of which exception_ is the translation; Python's own for the first to ask
  std::exception_ptr lasting_failure_;  ///< for all others
  c10::intrusive_ptr<c10::ivalue::Future> future_;

 private:
  bool is_over() const;  ///< under the lock
};

}  // namespace accdp::torch_backend
