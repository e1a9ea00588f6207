#include "codec/codec.hpp"

#include <sstream>

#include "base/error.hpp"
#include "base/settings.hpp"

namespace accdp {

extern const CodecRow kFpkRow, kBitcompRow, kLz4Row, kQpkRow, kBitcompLossyRow, kZhuffRow, kZstdRow, kQhuffRow;

namespace {

constexpr const CodecRow* kRows[] = {
    &kFpkRow, &kBitcompRow, &kLz4Row, &kQpkRow, &kBitcompLossyRow, &kZhuffRow, &kZstdRow, &kQhuffRow,
};

}  // namespace

std::span<const CodecRow* const> codec_rows() noexcept { return kRows; }

const CodecRow* find_codec(CodecId id) noexcept {
  for (const CodecRow* row : kRows)
    if (row->id == id) return row;
  return nullptr;
}

std::string why_not_here(const CodecRow& codec) {
  if (settings().codecs_off.empty()) return codec.why_not();
  bool off = false;
  std::istringstream names(settings().codecs_off);
  for (std::string name; std::getline(names, name, ',');) off |= codec_named(name).id == codec.id;
  return off ? "it is switched off by ACCDP_CODECS_OFF=" + settings().codecs_off : codec.why_not();
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
