#pragma once
#include <atomic>

#include "coll/post_office.hpp"
#include "torch/queue.hpp"

namespace accdp::torch_backend {

/// A send or a receive.
class MessageWork : public Work {
 public:
  using Work::Work;
  /// Connects it with its message. Kept alive by the message until that is done; then `arrived` is called, if all went
  /// well, and what is in it is dropped. timeout_s: of a wait() that does not say.
  /// callbacks: runs those of its future, while the group's own queue may wait for a message.
  static void follow(const c10::intrusive_ptr<MessageWork>& work, std::shared_ptr<Queue> callbacks,
                     std::shared_ptr<PostOffice> office, MessageHandle message, double timeout_s,
                     std::function<void()> arrived);

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  int sourceRank() const override;

 private:
  void arrive();
  void end_and_call_back(std::exception_ptr error);
  void limit();  ///< whoever waits by other means than wait() does not wait for ever either

  std::shared_ptr<Queue> callbacks_;
  std::atomic<bool> is_asked_for_ = false;  ///< its future, by somebody who may have put callbacks there
  std::shared_ptr<PostOffice> office_;
  MessageHandle message_;
  double timeout_s_ = 0;
  std::function<void()> arrived_;
};

/// Several works as one (a coalesced batch).
class BatchWork : public Work {
 public:
  static c10::intrusive_ptr<BatchWork> of(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works,
                                          const std::shared_ptr<Queue>& callbacks);
  BatchWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works, Tensors outputs);
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  bool isCompleted() override;
  void synchronize() override;
  void blockCurrentStream() override;
  /// Who waits by it waits no longer than by wait(): its parts hear of it.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::optional<c10::Stream> stream() const override;
  void join() override;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  std::atomic<std::size_t> left_;
};

}  // namespace accdp::torch_backend
