#pragma once
#include <dlfcn.h>

#include <string>

#include "base/handle.hpp"

namespace accdp {

/// A library opened at run time. Its symbols stay private to it: libnvcomp_cpu exports names such as LZ4_compress_fast
/// that must not meet those of another library in the process.
class SharedLibrary {
 public:
  /// Opens `name`, a path or what the loader searches for itself; empty where that fails, error() then says why.
  explicit SharedLibrary(const std::string& name) : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) note_error();
  }

  explicit operator bool() const noexcept { return static_cast<bool>(handle_); }
  const std::string& error() const noexcept { return error_; }

  /// Fills the function pointer; false and an error() where the library lacks the symbol.
  template <class Function>
  bool find(const char* symbol, Function*& function) {
    function = reinterpret_cast<Function*>(::dlsym(handle_.get(), symbol));
    if (!function) note_error();
    return function != nullptr;
  }

  /// Never closes it.
  void leak() noexcept { handle_.release(); }

 private:
  struct Traits {
    using Raw = void*;
    static Raw none() noexcept { return nullptr; }
    static void close(Raw library) noexcept { ::dlclose(library); }
  };

  void note_error() {
    const char* text = ::dlerror();
    error_ = text ? text : "unknown error";
  }

  Handle<Traits> handle_;
  std::string error_;
};

}  // namespace accdp
