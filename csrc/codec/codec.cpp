#include "codec/codec.hpp"

#include <sstream>

#include "base/error.hpp"
#include "base/settings.hpp"

namespace accdp {

extern const CodecRow kFpkRow, kBitcompRow, kAnsRow, kLz4Row, kQpkRow, kBitcompLossyRow, kZhuffRow, kZstdRow, kQhuffRow;

namespace {

constexpr const CodecRow* kRows[] = {
    &kFpkRow, &kBitcompRow, &kAnsRow, &kLz4Row, &kQpkRow, &kBitcompLossyRow, &kZhuffRow, &kZstdRow, &kQhuffRow,
};

/// wrong: what somebody wrote, and where; expected: what will do besides the codecs' names.
const CodecRow& row_named(const std::string& name, const std::string& wrong, const char* expected) {
  std::string known = expected;
  for (const CodecRow* row : kRows) {
    if (name == row->name) return *row;
    known += (known.empty() ? "" : ", ") + std::string(row->name);
  }
  throw UsageError(wrong + ": expected " + known);
}

}  // namespace

std::span<const CodecRow* const> codec_rows() noexcept { return kRows; }

std::uint32_t codecs_of_auto() noexcept {
  std::uint32_t set = 0;
  for (const CodecRow* row : kRows)
    if (!row->trusts_input && !row->stand_in) set |= bit_of(row->id);
  return set;
}

const CodecRow* find_codec(CodecId id) noexcept {
  for (const CodecRow* row : kRows)
    if (row->id == id) return row;
  return nullptr;
}

std::string why_not_here(const CodecRow& codec) {
  if (settings().codecs_off.empty()) return codec.why_not();
  bool off = false;
  const std::string given = "ACCDP_CODECS_OFF=" + settings().codecs_off;
  std::istringstream names(settings().codecs_off);
  for (std::string name; std::getline(names, name, ',');)
    off |= row_named(name, given + ": '" + name + "'", "").id == codec.id;
  return off ? "it is switched off by " + given : codec.why_not();
}

const CodecRow& codec_named(const std::string& name) { return row_named(name, "codec=" + name, "auto, none"); }

}  // namespace accdp
