#include "torch/message_work.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace accdp::torch_backend {
namespace {

using std::chrono::milliseconds;

/// A time-out for several waits, one after another; below 0 it is the group's, as 0 is.
class Timeout {
 public:
  explicit Timeout(milliseconds given)
      : is_given_(given > kNoTimeout), end_(Deadline(std::chrono::duration<double>(given).count()).at()) {}

  milliseconds left() const {  // none at all would mean no limit
    if (!is_given_) return kNoTimeout;
    return std::max(std::chrono::ceil<milliseconds>(end_ - Clock::now()), milliseconds(1));
  }

 private:
  bool is_given_;
  Clock::time_point end_;
};

}  // namespace

void MessageWork::follow(const c10::intrusive_ptr<MessageWork>& work, std::shared_ptr<Queue> callbacks,
                         std::shared_ptr<PostOffice> office, MessageHandle message, double timeout_s,
                         std::function<void()> arrived) {
  work->callbacks_ = std::move(callbacks);
  work->office_ = std::move(office);
  work->message_ = std::move(message);
  work->timeout_s_ = timeout_s;
  work->arrived_ = std::move(arrived);
  work->office_->on_done(work->message_, [work] { work->arrive(); });
}

void MessageWork::arrive() {
  {
    std::lock_guard lock(mutex_);
    if (completing_) return;
  }
  std::exception_ptr error = message_->error;
  if (!error) {
    try {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      arrived_();
    } catch (...) {
      error = std::current_exception();
    }
  }
  end_and_call_back(error);
  arrived_ = nullptr;  // copies of what was sent, for one
}

/// Not on a thread that moves messages: a callback may wait for any of them. Where only a batch asked for the future,
/// that calls nobody.
void MessageWork::end_and_call_back(std::exception_ptr error) {
  if (!end(std::move(error))) return;
  is_asked_for_ ? callbacks_->call_back(*this) : settle_future();
}

/// The time that operations of the group may take counts from here: the rank may have had other things to do, and the
/// peer as well. A time-out that is given ends this wait alone.
bool MessageWork::wait(milliseconds timeout) {
  const Timeout all(timeout);
  in_torchs_terms([&] {
    check_process();
    if (!wait_returns()) office_->check_not_driven_here();
  });
  if (!wait_returns()) {
    try {
      if (timeout <= kNoTimeout)
        office_->wait(message_, timeout_s_);
      else if (const double most = std::chrono::duration<double>(timeout).count();
               !office_->wait_all({&message_, 1}, 0, most))
        TORCH_CHECK(false, "ProcessGroupAccdp: wait of rank ", office_->rank(), ": ",
                    office_->says_late(*message_, most));
    } catch (const Interrupted&) {
      std::rethrow_exception(translated(std::current_exception()));
    } catch (const c10::Error&) {
      throw;
    } catch (...) {
      end_and_call_back(std::current_exception());
    }
  }
  // Whoever saw it finish may still be on the way to tell us.
  return Work::wait(all.left());
}

void MessageWork::limit() {
  if (!is_done()) without_gil([&] { office_->limit(message_, timeout_s_); });
}

void MessageWork::synchronize() {
  limit();
  Work::synchronize();
}

c10::intrusive_ptr<c10::ivalue::Future> MessageWork::getFuture() {
  in_torchs_terms([&] { check_process(); });
  limit();
  is_asked_for_ = true;
  return Work::getFuture();
}

int MessageWork::sourceRank() const {
  if (opType_ != c10d::OpType::RECV && opType_ != c10d::OpType::RECVANYSOURCE) return c10d::Work::sourceRank();
  return message_->peer;
}

c10::intrusive_ptr<BatchWork> BatchWork::of(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works,
                                            const std::shared_ptr<Queue>& callbacks) {
  Tensors outputs;
  for (const auto& work : works)
    for (const at::Tensor& tensor : static_cast<const Work&>(*work).outputs()) outputs.push_back(tensor);
  auto batch = c10::make_intrusive<BatchWork>(rank, std::move(works), std::move(outputs));
  if (batch->works_.empty()) batch->complete();
  // The last one to end ends the batch, with the first error that there is.
  for (const auto& work : batch->works_)
    static_cast<Work&>(*work).Work::getFuture()->addCallback(
        [batch, callbacks](c10::ivalue::Future&) {
          if (--batch->left_ > 0) return;
          std::exception_ptr error;
          for (const auto& each : batch->works_)
            if (!error) error = each->exception();
          if (batch->end(error)) callbacks->call_back(*batch);
        },
        false);  // uses no value, so that no stream need wait for it
  return batch;
}

BatchWork::BatchWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works, Tensors outputs)
    : Work(rank, c10d::OpType::COALESCED, nullptr, {}, std::move(outputs), 0),
      works_(std::move(works)),
      left_(works_.size()) {}

bool BatchWork::wait(milliseconds timeout) {
  const Timeout all(timeout);
  for (const auto& work : works_) work->wait(all.left());
  return Work::wait(all.left());
}

c10::intrusive_ptr<c10::ivalue::Future> BatchWork::getFuture() {
  for (const auto& work : works_) work->getFuture();
  return Work::getFuture();
}

bool BatchWork::isCompleted() {
  for (const auto& work : works_)
    if (!work->isCompleted()) return false;
  return Work::isCompleted();
}

void BatchWork::synchronize() {
  Work::synchronize();
  for (const auto& work : works_) work->synchronize();
}

/// One of theirs: join() makes it wait for all.
std::optional<c10::Stream> BatchWork::stream() const {
  for (const auto& work : works_)
    if (const auto its = static_cast<const Work&>(*work).stream()) return its;
  return std::nullopt;
}

void BatchWork::join() {
  for (const auto& work : works_) static_cast<Work&>(*work).join();
}

void BatchWork::blockCurrentStream() {
  for (const auto& work : works_) work->blockCurrentStream();
}

}  // namespace accdp::torch_backend
