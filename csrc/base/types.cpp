#include "base/types.hpp"

#include <algorithm>
#include <iterator>

namespace accdp {
namespace {

struct Row {
  const char* name;
  std::uint8_t bytes;
  char kind;  // 'i' integer, 'f' float, 'c' complex, 'b' opaque bytes
};
constexpr Row kTypes[] = {
    {"bool", 1, 'i'},        {"uint8", 1, 'i'},     {"int8", 1, 'i'},        {"uint16", 2, 'i'},
    {"int16", 2, 'i'},       {"uint32", 4, 'i'},    {"int32", 4, 'i'},       {"uint64", 8, 'i'},
    {"int64", 8, 'i'},       {"float16", 2, 'f'},   {"bfloat16", 2, 'f'},    {"float32", 4, 'f'},
    {"float64", 8, 'f'},     {"complex64", 8, 'c'}, {"complex128", 16, 'c'}, {"float8_e4m3fn", 1, 'f'},
    {"float8_e5m2", 1, 'f'}, {"bytes", 1, 'b'},
};
constexpr std::string_view kOps[] = {"sum", "avg", "prod", "min", "max", "band", "bor", "bxor"};

const Row& row(Datatype type) noexcept { return kTypes[static_cast<int>(type)]; }

}  // namespace

std::size_t element_bytes(Datatype type) noexcept { return row(type).bytes; }
const char* name_of(Datatype type) noexcept { return row(type).name; }
const char* name_of(ReduceOp op) noexcept { return kOps[static_cast<int>(op)].data(); }
std::optional<ReduceOp> reduce_op_named(std::string_view name) noexcept {
  const auto found = std::ranges::find(kOps, name);
  return found == std::end(kOps) ? std::nullopt : std::optional(static_cast<ReduceOp>(found - kOps));
}
bool is_short_float(Datatype type) noexcept { return row(type).kind == 'f' && row(type).bytes < sizeof(float); }
bool is_real_float(Datatype type) noexcept { return row(type).kind == 'f' && row(type).bytes > 1; }

bool is_complex(Datatype type) noexcept { return row(type).kind == 'c'; }

}  // namespace accdp
