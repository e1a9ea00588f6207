#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

#include "coll/notices.hpp"

namespace accdp::torch_backend {

/// Notices under a key of torch's store.
class StoreNotices : public Notices {
 public:
  StoreNotices(c10::intrusive_ptr<c10d::Store> store, std::string key)
      : store_(std::move(store)), key_(std::move(key)) {}

  void leave(const std::string& text) override { store_->set(key_, text); }
  std::string find() override {
    if (!store_->check({key_})) return {};
    const std::vector<std::uint8_t> text = store_->get(key_);
    return {text.begin(), text.end()};
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string key_;
};

}  // namespace accdp::torch_backend
