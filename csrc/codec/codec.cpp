#include "codec/codec.hpp"

#include "base/error.hpp"

namespace accdp {

extern const CodecRow kFpkRow, kBitcompRow, kLz4Row, kQpkRow, kBitcompLossyRow, kZhuffRow, kZstdRow;

namespace {

constexpr const CodecRow* kRows[] = {
    &kFpkRow, &kBitcompRow, &kLz4Row, &kQpkRow, &kBitcompLossyRow, &kZhuffRow, &kZstdRow,
};

}  // namespace

std::span<const CodecRow* const> codec_rows() noexcept { return kRows; }

const CodecRow* find_codec(CodecId id) noexcept {
  for (const CodecRow* row : kRows)
    if (row->id == id) return row;
  return nullptr;
}

const CodecRow& codec_named(const std::string& name) {
  std::string known;
  for (const CodecRow* row : kRows) {
    if (name == row->name) return *row;
    known += std::string(", ") + row->name;
  }
  throw UsageError("codec=" + name + ": expected auto, none" + known);
}

}  // namespace accdp
