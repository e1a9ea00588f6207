#pragma once
#include <utility>

namespace accdp {

/// Sole owner of one foreign handle. `Traits` says what the handle is, what "none" looks like and
/// how to let go; letting go never throws. A moved-from Handle is empty.
template <class Traits>
class Handle {
 public:
  using Raw = typename Traits::Raw;

  Handle() noexcept : raw_(Traits::none()) {}
  explicit Handle(Raw raw) noexcept : raw_(raw) {}
  Handle(Handle&& other) noexcept : raw_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      raw_ = other.release();
    }
    return *this;
  }
  ~Handle() { reset(); }

  Raw get() const noexcept { return raw_; }
  explicit operator bool() const noexcept { return raw_ != Traits::none(); }
  Raw release() noexcept { return std::exchange(raw_, Traits::none()); }
  void reset() noexcept {
    if (*this) Traits::close(release());
  }

 private:
  Raw raw_;
};

}  // namespace accdp
