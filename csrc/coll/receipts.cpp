#include "coll/receipts.hpp"

namespace accdp {

void FramesUnderWay::sent(std::size_t bytes) {
  if (rule_.measures_link) c_.learned().link.sent(bytes, Clock::now());
  ++sent_;
  sent_bytes_ += bytes;
  if (rule_.has(sent_)) awaited_.push_back({sent_, sent_bytes_});
}

void FramesUnderWay::look() {
  while (!awaited_.empty()) {
    ask();
    if (!c_.test(request_)) return;
    count();
  }
}

void FramesUnderWay::await_receipt() {
  ask();
  c_.wait(request_);
  count();
}

void FramesUnderWay::ask() {
  if (token_.empty()) token_ = c_.scratch(1);
  if (!request_.pending) request_ = c_.wire().irecv(token_, receiver_, Wire::kReceipt);
}

void FramesUnderWay::count() {
  if (rule_.measures_link) c_.learned().link.received(awaited_.front().bytes, Clock::now());
  arrived_ = awaited_.front().frames;
  awaited_.pop_front();
}

}  // namespace accdp
