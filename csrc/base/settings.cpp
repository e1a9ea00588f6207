#include "base/settings.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/keep.hpp"

namespace accdp {
namespace {

/// Whether "auto, on or off", say, has the word.
constexpr bool lists(std::string_view accepts, std::string_view word) {
  while (true) {
    const std::size_t comma = accepts.find(", "), last = accepts.find(" or ");
    const std::size_t end = std::min(comma, last);
    if (accepts.substr(0, end) == word) return true;
    if (end == std::string_view::npos) return false;
    accepts.remove_prefix(end + (end == comma ? 2 : 4));
  }
}
static_assert(lists("auto, on or off", "on") && lists("off or mpi", "mpi") && !lists("auto, on or off", "on or off"));

constexpr Setting kRows[] = {
    {&Settings::chunk_bytes, "ACCDP_CHUNK_BYTES", "bytes from 4k to 64M, a multiple of 4k, k/M/G suffix",
     "Size of one chunk that a rank hands to its node's other ranks; two per rank are kept in shared memory.", true,
     [](const Settings& now) { return in_steps(now.chunk_bytes, 4 << 10, 64 << 20); }},
    {&Settings::flat_bytes, "ACCDP_FLAT_BYTES", "bytes up to ACCDP_CHUNK_BYTES, k/M/G suffix",
     "Reductions up to this size are done whole by every rank, in one step instead of two.", true,
     [](const Settings& now) { return now.flat_bytes <= now.chunk_bytes; }},
    {&Settings::ring_bytes, "ACCDP_RING_BYTES", "bytes from 4k to 1G, a power of two, k/M/G suffix",
     "Size of the shared-memory ring from one rank to another that send and recv use. Less where a rank has more of "
     "them than 16 MiB have room for, down to 256k.",
     true,
     [](const Settings& now) {
       return in_steps(now.ring_bytes, 4 << 10, 1 << 30) && (now.ring_bytes & (now.ring_bytes - 1)) == 0;
     }},
    {&Settings::eager_bytes, "ACCDP_EAGER_BYTES", "bytes up to a quarter of ACCDP_RING_BYTES, k/M/G suffix",
     "Messages within a node up to this size are sent before the receiver asked for them (docs/algorithms.md).", true,
     [](const Settings& now) { return now.eager_bytes <= now.ring_bytes / 4; }},
    {&Settings::cma, "ACCDP_CMA", "auto, on or off",
     "Whether recv copies long messages straight out of the sender's memory (cross-memory attach). auto: where the "
     "system allows it; on: ranks also let each other do so under Yama, and it is an error where they cannot.",
     true, Listed()},
    {&Settings::slot_stores, "ACCDP_SLOT_STORES", "auto, cached or streaming",
     "How a rank writes what others of its node read: cached, by ordinary stores; streaming, past the caches, which is "
     "faster where their cores are far apart; auto, by what the former cost.",
     false, Listed()},
    {&Settings::spin_us, "ACCDP_SPIN_US", "microseconds from 0 to 1e6",
     "How long a waiting rank spins before it sleeps; where ranks outnumber cores at most 3 us, and only for ranks on "
     "other cores; not at all if it did not help lately.",
     false, [](const Settings& now) { return now.spin_us <= 1e6; }},
    {&Settings::yield_us, "ACCDP_YIELD_US", "microseconds from 0 to 1e6",
     "How long a waiting rank then offers its core to others before it sleeps; a fifth of it where ranks outnumber "
     "cores, none where a quota pays for fewer CPUs than there are ranks; not at all if it did not help lately, or in "
     "a broadcast at the pace of a slow link.",
     false, [](const Settings& now) { return now.yield_us <= 1e6; }},
    {&Settings::timeout_s, "ACCDP_TIMEOUT_S", "seconds, >= 0; 0 = the group's own",
     "How long one operation may wait for other ranks before it fails.", false},
    {&Settings::liveness_s, "ACCDP_LIVENESS_S", "seconds, > 0, up to 3600",
     "How often a waiting rank looks whether the processes it waits for still live.", false,
     [](const Settings& now) { return 0 < now.liveness_s && now.liveness_s <= 3600; }},
    {&Settings::mpi, "ACCDP_MPI", "auto or on",
     "auto: MPI is initialised under an MPI launcher and for groups that span nodes; on: always.", true, Listed()},
    {&Settings::topology, "ACCDP_TOPOLOGY",
     "NODESxRANKS such as 2x2, or a node number per world rank such as 0,0,1; empty = as found",
     "Declares which ranks share a node instead of looking, so that a hierarchy can be tried on one host.", true},
    {&Settings::bcast_algorithm, "ACCDP_BCAST_ALGORITHM",
     "auto, chain, binomial, scatter_allgather, mpi or p2p_compressed",
     "How a broadcast goes from node to node; the last three are for comparison.", true, Listed()},
    {&Settings::allreduce, "ACCDP_ALLREDUCE", "auto, direct, recursive_doubling, ring, pipeline or mpi",
     "How allreduce goes from node to node; auto takes the cheapest. mpi, for comparison, is the MPI library's own "
     "over all ranks.",
     true, Listed()},
    {&Settings::baseline, "ACCDP_BASELINE", "off or mpi",
     "mpi: bcast, allreduce, reduce, reduce_scatter, allgather and alltoall are the MPI library's own, for comparison; "
     "on one node with ACCDP_MPI=on.",
     true, Listed()},
    {&Settings::codec, "ACCDP_CODEC", "none, auto or a lossless codec of `accdp info`",
     "How dist.broadcast compresses what goes to other nodes, where pg_options give no codec. A "
     "name, unlike auto, encodes on one node, too.",
     true, [](const Settings& now) { return !now.codec.empty(); }},
    {&Settings::codec_chunk_bytes, "ACCDP_CODEC_CHUNK_BYTES", "bytes from 4k to 16M, a multiple of 4k, k/M/G suffix",
     "Size of one chunk, before encoding, of compressed operations that say no other, and of what a broadcast sends "
     "between nodes without compression.",
     true, [](const Settings& now) { return is_codec_chunk(now.codec_chunk_bytes); }},
    {&Settings::deterministic, "ACCDP_DETERMINISTIC", "off or on",
     "on: reductions give the same bits for any placement of the ranks on nodes; more bytes travel between nodes.",
     true, Listed()},
    {&Settings::async_ops, "ACCDP_ASYNC_OPS", "on or off",
     "off: asynchronous collectives of a torch group made meanwhile are done when their call returns, and so callbacks "
     "of their futures run there: for hooks that begin collectives in them (docs/sharp_bits.md).",
     true, Listed()},
    {&Settings::codecs_off, "ACCDP_CODECS_OFF", "codecs of `accdp info`, comma separated; empty = none",
     "Codecs that this rank does without, as if what they need were missing; no rank of its groups then uses them.",
     false},
    {&Settings::cache_dir, "ACCDP_CACHE_DIR", "a folder; empty = accdp in the user's cache folder; - = none",
     "Where measured codec speeds are kept for the next run.", false},
    {&Settings::step_log, "ACCDP_STEP_LOG", "a folder; empty = none",
     "Where each rank keeps when its collectives and steps ended, in a file; `accdp tune` reads them.", false},
    {&Settings::gpu_path, "ACCDP_GPU_PATH", "auto, by_host or staged",
     "auto: ranks on one GPU exchange device memory there; by_host: and no events of CUDA's, for which their hosts "
     "wait instead of their devices; staged: it goes through host memory, and other ranks of the call may give host "
     "memory.",
     true, Listed()},
    {&Settings::gpu_slot_bytes, "ACCDP_GPU_SLOT_BYTES", "bytes from 64k to 256M, a multiple of 64k, k/M/G suffix",
     "Size of one slot of device memory that a rank shares with those on its GPU (two per rank are kept), and of one "
     "chunk on its way through host memory.",
     true, [](const Settings& now) { return in_steps(now.gpu_slot_bytes, 64 << 10, 256 << 20); }},
    {&Settings::gpu_pinned_bytes, "ACCDP_GPU_PINNED_BYTES", "bytes, k/M/G suffix; 0 = none",
     "How much pinned host memory a process keeps, and at most uses, for what goes between devices and the host; the "
     "rest goes through pageable memory (docs/gpu.md).",
     false},
    {&Settings::mpi_cuda, "ACCDP_MPI_CUDA", "auto, on or off",
     "Whether device memory is handed to MPI for other nodes, instead of pinned host memory. auto: where the MPI "
     "library says that it takes it (MPIX_Query_cuda_support).",
     true, Listed()},
};

[[noreturn]] void reject(const Setting& row, const std::string& text) {
  throw UsageError(std::string(row.name) + "=" + text + ": expected " + row.accepts);
}

template <class T>
T number(const Setting& row, const std::string& text, const char*& rest) {
  T value{};
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || !(value >= 0) || value > std::numeric_limits<T>::max() / 2) reject(row, text);
  rest = end;
  return value;
}

void parse(Settings& values, const Setting& row, const std::string& text) {
  const char* rest = "";
  if (auto integer = std::get_if<std::int64_t Settings::*>(&row.member)) {
    std::int64_t value = number<std::int64_t>(row, text, rest);
    int shift = *rest == 'k' ? 10 : *rest == 'M' ? 20 : *rest == 'G' ? 30 : 0;
    if (rest[shift ? 1 : 0] != '\0' || value > (std::numeric_limits<std::int64_t>::max() >> (shift + 1)))
      reject(row, text);
    values.** integer = value << shift;
  } else if (auto real = std::get_if<double Settings::*>(&row.member)) {
    values.** real = number<double>(row, text, rest);
    if (*rest) reject(row, text);
  } else {
    values.*std::get<std::string Settings::*>(row.member) = text;
  }
}

bool is_accepted(const Setting& row, const Settings& values) {
  if (auto rule = std::get_if<bool (*)(const Settings&)>(&row.holds)) return (*rule)(values);
  return !std::holds_alternative<Listed>(row.holds) || lists(row.accepts, text_of(row, values));
}

constexpr const char* kSources[] = {"default", "environment", "code"};

struct State {
  Settings values;
  const char* sources[std::size(kRows)];  // of kSources

  void change(const Change& to) {
    const auto row = std::ranges::find_if(kRows, [&](const Setting& any) { return to.name == any.name; });
    if (row == std::end(kRows)) throw UsageError(to.name + ": no such setting; `accdp info` lists them");
    const auto source = std::ranges::find_if(kSources, [&](const char* any) { return to.source == any; });
    if (source == std::end(kSources))
      throw UsageError(to.name + ": source=" + to.source + ": expected default, environment or code");
    parse(values, *row, to.text);
    sources[row - kRows] = *source;
  }
};

/// Limits that nobody set follow a chunk or ring that was made smaller; then everything is checked.
void settle(State& state) {
  auto follow = [&](std::int64_t Settings::* member, std::int64_t most) {
    for (std::size_t i = 0; i < std::size(kRows); ++i)
      if (kRows[i].member == Member(member) && std::strcmp(state.sources[i], "default") == 0)
        state.values.*member = std::min(Settings().*member, most);
  };
  follow(&Settings::flat_bytes, state.values.chunk_bytes);
  follow(&Settings::eager_bytes, state.values.ring_bytes / 4);
  for (const Setting& row : kRows)
    if (!is_accepted(row, state.values)) reject(row, text_of(row, state.values));
}

State from_environment() {
  State state;
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    const char* text = std::getenv(kRows[i].name);
    state.sources[i] = text ? "environment" : "default";
    if (text) parse(state.values, kRows[i], text);
  }
  settle(state);
  return state;
}

/// What a thread reads while another changes settings, which is seldom, stays as it is.
const State* kept(State state) {
  auto owner = std::make_unique<const State>(std::move(state));
  const State* const it = owner.get();
  keep_for_ever(std::move(owner));
  return it;
}

std::atomic<const State*>& latest() {
  static std::atomic<const State*> it = kept(from_environment());
  return it;
}

const State& state() { return *latest().load(std::memory_order_acquire); }

}  // namespace

std::span<const Setting> setting_rows() noexcept { return kRows; }
const Settings& settings() { return state().values; }

void set_setting(const std::string& name, const std::string& text) { set_settings(std::array{Change{name, text}}); }

void set_settings(std::span<const Change> changes) {
  State changed = state();
  for (const Change& change : changes) changed.change(change);
  settle(changed);
  latest().store(kept(std::move(changed)), std::memory_order_release);
}

std::string text_of(const Setting& row, const Settings& values) {
  if (auto integer = std::get_if<std::int64_t Settings::*>(&row.member)) {
    std::int64_t value = values.**integer;
    if (value && value % (1 << 30) == 0) return std::to_string(value >> 30) + "G";
    if (value && value % (1 << 20) == 0) return std::to_string(value >> 20) + "M";
    if (value && value % (1 << 10) == 0) return std::to_string(value >> 10) + "k";
    return std::to_string(value);
  }
  if (auto real = std::get_if<double Settings::*>(&row.member)) {
    char text[32];
    auto end = std::to_chars(text, text + sizeof text, values.**real).ptr;
    return std::string(text, end);
  }
  return values.*std::get<std::string Settings::*>(row.member);
}

const char* source_of(const Setting& row) { return state().sources[&row - kRows]; }

std::string shared_settings_text() {
  std::string text;
  for (const Setting& row : kRows)
    if (row.shared) text += std::string(row.name) + "=" + text_of(row, settings()) + ";";
  return text;
}

std::string cache_directory() {
  if (settings().cache_dir == "-") return "";
  if (!settings().cache_dir.empty()) return settings().cache_dir;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return std::string(cache) + "/accdp";
  if (const char* home = std::getenv("HOME"); home && *home) return std::string(home) + "/.cache/accdp";
  return "";
}

}  // namespace accdp
