#include "codec/fpk.hpp"

#include "codec/block_stream.hpp"
#include "codec/codec.hpp"
#include "codec/fpk_blocks.hpp"

namespace accdp {
namespace {

bool is_integer_block(Datatype type) { return type == Datatype::kU16 || type == Datatype::kU32; }

}  // namespace

bool fpk_takes(Datatype type) noexcept {
  return type == Datatype::kF32 || type == Datatype::kBF16 || type == Datatype::kF16 || is_integer_block(type);
}

std::size_t fpk_encode(Datatype type, ConstBytes in, Bytes out, const BlockOps& ops) {
  if (in.empty()) return 0;
  const std::size_t width = element_bytes(type);
  return encode_blocks(in, width * kRow, out.first(in.size() - 1), [&](const std::byte* block, Bytes room) {
    return is_integer_block(type) ? fpk_encode_integers(ops, static_cast<int>(width), block, room)
                                  : fpk_encode_floats(ops, type, block, room);
  });
}

void fpk_decode(Datatype type, ConstBytes in, Bytes out, const BlockOps& ops) {
  const std::size_t width = element_bytes(type);
  decode_blocks(in, width * kRow, out, [&](ConstBytes encoded, std::byte* block) {
    is_integer_block(type) ? fpk_decode_integers(ops, static_cast<int>(width), encoded, block)
                           : fpk_decode_floats(ops, type, encoded, block);
  });
}

extern const CodecRow kFpkRow;
const CodecRow kFpkRow = {
    CodecId::kFpk,
    "fpk",
    1,
    "float32, bfloat16, float16, uint16, uint32",
    "exact",
    "own",
    false,
    fpk_takes,
    [] { return std::string(); },
    []() -> std::uint8_t { return 0; },
    [](const Encoding& how, ConstBytes in, Bytes out) { return fpk_encode(how.type, in, out); },
    [](Datatype type, ConstBytes in, Bytes out) { fpk_decode(type, in, out); },
};

}  // namespace accdp
