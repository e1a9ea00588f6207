#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <variant>

namespace accdp {

/// Every run-time setting. The initialisers are the defaults; nothing else states one.
struct Settings {
  std::int64_t chunk_bytes = 1 << 20;
  std::int64_t flat_bytes = 16 << 10;
  std::int64_t ring_bytes = 2 << 20;
  std::int64_t eager_bytes = 64 << 10;
  std::string cma = "auto";
  std::string slot_stores = "auto";
  double spin_us = 20;
  double yield_us = 1000;
  double timeout_s = 0;
  double liveness_s = 0.25;
  std::string mpi = "auto";
  std::string topology = "";
  std::string bcast_algorithm = "auto";
  std::string allreduce = "auto";
  std::string baseline = "off";
  std::string codec = "none";
  std::int64_t codec_chunk_bytes = 256 << 10;
  std::string deterministic = "off";
  std::string async_ops = "on";
  std::string codecs_off = "";
  std::string cache_dir = "";
  std::string step_log = "";
  std::string gpu_path = "auto";
  std::int64_t gpu_slot_bytes = 16 << 20;
  std::int64_t gpu_pinned_bytes = 64 << 20;
  std::string mpi_cuda = "auto";
};

using Member = std::variant<std::int64_t Settings::*, double Settings::*, std::string Settings::*>;

/// A text is one of the words that `accepts` lists, as in "auto, on or off".
struct Listed {};

/// One row per member of Settings: the parser, `accdp info` and docs/environment.md read these rows.
struct Setting {
  Member member;
  const char* name;     ///< environment variable
  const char* accepts;  ///< accepted values, with unit
  const char* meaning;  ///< one sentence
  bool shared;          ///< all ranks of a group must have the same value
  /// What is accepted, where not every value of the type is. Asked after any change: some depend on others.
  std::variant<std::monostate, Listed, bool (*)(const Settings&)> holds = {};
};

std::span<const Setting> setting_rows() noexcept;

/// least is also the step.
constexpr bool in_steps(std::int64_t bytes, std::int64_t least, std::int64_t most) {
  return least <= bytes && bytes <= most && bytes % least == 0;
}
/// Whether codecs take so much at once, by the setting or where a call asks for it.
constexpr bool is_codec_chunk(std::int64_t bytes) { return in_steps(bytes, 4 << 10, 16 << 20); }

/// The values in force: defaults, then the environment (read at first use), then set_settings().
/// Throws UsageError naming variable, value and accepted form.
const Settings& settings();
void set_setting(const std::string& name, const std::string& text);

struct Change {
  std::string name, text, source = "code";  ///< source: as of source_of()
};
/// All of them or, where that is not accepted, none: some settings limit others.
void set_settings(std::span<const Change> changes);

std::string text_of(const Setting& row, const Settings& values);
const char* source_of(const Setting& row);  ///< "default", "environment" or "code"
std::string shared_settings_text();         ///< "NAME=value;..." of the rows that ranks must share

/// Where files may be kept from one run to the next: ACCDP_CACHE_DIR, else the user's cache folder; "" if there is
/// none.
std::string cache_directory();

}  // namespace accdp
