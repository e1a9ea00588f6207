#include "base/error.hpp"

#include <cstring>

namespace accdp {

void throw_system(const char* call, int error_number, const char* file, int line) {
  const char* base = std::strstr(file, "csrc/");
  throw SystemCallError(std::string(call) + " failed: " + std::strerror(error_number) + " (" +
                        (base ? base + 5 : file) + ":" + std::to_string(line) + ")");
}

}  // namespace accdp
