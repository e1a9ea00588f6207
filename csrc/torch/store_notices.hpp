#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <mutex>
#include <string>

#include "coll/notices.hpp"

namespace accdp::torch_backend {

/// Notices under a key of torch's store.
class StoreNotices : public Notices {
 public:
  StoreNotices(c10::intrusive_ptr<c10d::Store> store, std::string key)
      : store_(std::move(store)), key_(std::move(key)) {}

  void leave(const std::string& text) override { ours().set(key_, text); }
  std::string find() override {
    if (!ours().check({key_})) return {};
    const std::vector<std::uint8_t> text = ours().get(key_);
    return {text.begin(), text.end()};
  }

 private:
  /// A connection of its own, made when it is needed: a store that serves one call at a time is of no use while
  /// somebody waits in it, and who serves it has not room for one of each rank and group.
  c10d::Store& ours() {
    std::call_once(once_, [this] { store_ = clone_of(std::move(store_)); });
    return *store_;
  }
  template <class Store>
  static c10::intrusive_ptr<Store> clone_of(c10::intrusive_ptr<Store> store) {
    if constexpr (requires { store->clone(); }) {  // not of every torch, and not of every store
      try {
        return store->clone();
      } catch (const std::exception&) {
        return store;
      }
    }
    return store;
  }

  std::once_flag once_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::string key_;
};

}  // namespace accdp::torch_backend
