#include "base/error.hpp"

#include <cstring>
#include <string_view>

namespace accdp {

void throw_system(const char* call, int error_number, const char* file, int line) {
  const char* base = std::strstr(file, "csrc/");
  throw SystemCallError(std::string(call) + " failed: " + std::strerror(error_number) + " (" +
                        (base ? base + 5 : file) + ":" + std::to_string(line) + ")");
}

std::exception_ptr named(const std::exception_ptr& error, const std::string& who, const std::string& what) {
  const auto again = [&]<class Kind>(const Kind& e) {
    const std::string_view text = e.what();
    return text.starts_with(who) ? error : std::make_exception_ptr(Kind(who + ": " + what + ": " + std::string(text)));
  };
  try {
    std::rethrow_exception(error);
  } catch (const MpiError& e) {
    return again(e);
  } catch (const CudaError& e) {
    return again(e);
  } catch (const CodecError& e) {
    return again(e);
  } catch (const SystemCallError& e) {
    return again(e);
  } catch (const PeerDied& e) {
    return again(e);
  } catch (const MismatchError& e) {
    return again(e);
  } catch (...) {
    return error;
  }
}

}  // namespace accdp
