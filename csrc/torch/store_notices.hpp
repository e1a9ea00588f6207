#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

#include "coll/notices.hpp"

namespace accdp::torch_backend {

/// Notices under a key of torch's store.
class StoreNotices : public Notices {
 public:
  StoreNotices(c10::intrusive_ptr<c10d::Store> store, std::string key)
      : store_(own(std::move(store))), key_(std::move(key)) {}

  void leave(const std::string& text) override { store_->set(key_, text); }
  std::string find() override {
    if (!store_->check({key_})) return {};
    const std::vector<std::uint8_t> text = store_->get(key_);
    return {text.begin(), text.end()};
  }

 private:
  /// A connection of our own: a store that serves one call at a time is of no use while somebody waits in it.
  template <class Store>
  static c10::intrusive_ptr<Store> own(c10::intrusive_ptr<Store> store) {
    if constexpr (requires { store->clone(); }) {  // not of every torch, and not of every store
      try {
        return store->clone();
      } catch (const std::exception&) {
        return store;
      }
    }
    return store;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::string key_;
};

}  // namespace accdp::torch_backend
