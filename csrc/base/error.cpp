#include "base/error.hpp"

#include <cstring>

namespace accdp {

void throw_system(const char* call, int error_number, const char* file, int line) {
  const char* base = std::strstr(file, "csrc/");
  throw SystemCallError(std::string(call) + " failed: " + std::strerror(error_number) + " (" +
                        (base ? base + 5 : file) + ":" + std::to_string(line) + ")");
}

std::exception_ptr with_text(std::exception_ptr error, const std::string& text) {
  try {
    std::rethrow_exception(error);
  } catch (const MpiError&) {
    return std::make_exception_ptr(MpiError(text));
  } catch (const CudaError&) {
    return std::make_exception_ptr(CudaError(text));
  } catch (const CodecError&) {
    return std::make_exception_ptr(CodecError(text));
  } catch (const SystemCallError&) {
    return std::make_exception_ptr(SystemCallError(text));
  } catch (const PeerDied&) {
    return std::make_exception_ptr(PeerDied(text));
  } catch (...) {
    return error;
  }
}

}  // namespace accdp
