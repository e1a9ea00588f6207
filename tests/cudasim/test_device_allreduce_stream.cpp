// Compressed allreduces of tensors in device memory: encoded, decoded and added up there by the ranks of a node that
// all have theirs on devices which they reach, in groups whose other nodes may work in the host. The bits are those of
// ranks without a device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/ranges.hpp"
#include "batched_nvcomp.hpp"
#include "codec_data.hpp"
#include "device_checks.hpp"
#include "process_wire.hpp"

/// What a rank gives and gets.
struct Given {
  Buffer values;
  Datatype type;
  std::vector<std::size_t> parts;  // elements
  bool has_residual = false;
  Buffer residual = {};
};

/// An allreduce as the bindings make it, of memory on the device by host memory that stands for it.
StreamReport allreduce_on_device(const Gpu& gpu, Given& given, ReduceOp op, StreamOptions options) {
  const std::size_t count = given.values.size() / element_bytes(given.type);
  given.residual.assign(given.has_residual ? count * sizeof(float) : 0, std::byte{7});
  const DeviceBuffer memory(given.values.size() + 1), left(given.residual.size() + 1);
  const Bytes data(memory.data(), given.values.size()), rest(left.data(), given.residual.size());
  copy_async(data.data(), given.values.data(), data.size(), gpu.stream());
  std::vector<DeviceBlock> blocks{{data, false, true, true}};
  if (given.has_residual) blocks.push_back({rest, false, true});
  const auto stream = reinterpret_cast<std::uintptr_t>(gpu.stream());
  gpu.path->admit(kDevice, stream);
  const std::unique_ptr<HostCopies> copies = gpu.path->fetch(kDevice, stream, blocks);
  options.on_device = &copies->on_device();
  std::vector<Piece> pieces;
  Bytes all = copies->blocks()[0];
  for (std::size_t part : given.parts) {
    pieces.push_back({all.first(part * element_bytes(given.type)), given.type});
    all = all.subspan(part * element_bytes(given.type));
  }
  std::span<float> residual;
  if (given.has_residual) residual = {reinterpret_cast<float*>(copies->blocks()[1].data()), count};
  const StreamReport report = gpu.group.allreduce_stream(std::move(pieces), op, options, residual);
  copies->deliver();
  copy_async(given.values.data(), data.data(), data.size(), gpu.stream());
  copy_async(given.residual.data(), rest.data(), rest.size(), gpu.stream());
  gpu.synchronize();
  return report;
}

StreamReport allreduce_on_host(Group& group, Given& given, ReduceOp op, const StreamOptions& options) {
  const std::size_t count = given.values.size() / element_bytes(given.type);
  given.residual.assign(given.has_residual ? count * sizeof(float) : 0, std::byte{7});
  std::vector<Piece> pieces;
  Bytes all = given.values;
  for (std::size_t part : given.parts) {
    pieces.push_back({all.first(part * element_bytes(given.type)), given.type});
    all = all.subspan(part * element_bytes(given.type));
  }
  std::span<float> residual(reinterpret_cast<float*>(given.residual.data()), given.residual.size() / sizeof(float));
  return group.allreduce_stream(std::move(pieces), op, options, residual);
}

bool is_on_device(int rank, int which) {
  switch (which) {
    case 0: return true;
    case 1: return rank % 2 == 0;
    case 2: return rank % 2 == 1;
    default: return rank < 2;  // nodes of two ranks differ
  }
}

bool g_shares = true;  // whether the ranks of a node reach each other's devices
bool g_has_nvcomp = false;

/// Whether a rank encodes on its device: all of its node do, if there are other nodes.
bool works_on_device(const Topology& t, int which) {
  if (t.nodes() == 1) return false;
  bool all = g_shares || t.local_size() == 1;
  for (int rank : t.neighbours()) all &= is_on_device(rank, which);
  return all && is_on_device(t.rank(), which);
}

Given given_by(int rank, Datatype type, Kind kind, std::size_t count, std::vector<std::size_t> parts) {
  return {make(kind, type, count, 17 + rank), type, std::move(parts)};
}

/// The same allreduce by ranks of which `which` says whether they use their device, and by all of them in the host.
void compare(const Gpu& gpu, int which, const Given& what, const char* codec, ReduceOp op, ErrorBound bound,
             std::size_t chunk) {
  Group& group = gpu.group;
  StreamOptions options = stream_options(codec, chunk, "");
  options.bound = bound;
  Given wanted = what, mine = what;
  const StreamReport on_host = allreduce_on_host(group, wanted, op, options);
  const bool on_device = is_on_device(group.rank(), which);
  const StreamReport report =
      on_device ? allreduce_on_device(gpu, mine, op, options) : allreduce_on_host(group, mine, op, options);
  CHECK(mine.values == wanted.values);
  CHECK(mine.residual == wanted.residual);
  CHECK(report.wire_bytes == on_host.wire_bytes && report.logical_bytes == on_host.logical_bytes);
  CHECK(report.codec == on_host.codec);
  if (report.codec == "fpk" || report.codec == "qpk")
    CHECK(report.codec_place == (works_on_device(group.topology(), which) ? "device" : "host"));
}

/// All where every rank uses its device, else one each: what there is to a datatype does not depend on others' places.
std::vector<Datatype> floats(int which) {
  const std::vector<Datatype> all{Datatype::kF32, Datatype::kBF16, Datatype::kF16};
  return which == 0 ? all : std::vector{all.at(which - 1)};
}

/// Sizes around frames, data that no codec makes smaller, parts that share a chunk, all the same bits.
void exact(const Gpu& gpu, int which) {
  const int rank = gpu.group.rank();
  for (const Datatype type : floats(which))
    for (const std::size_t count : {std::size_t{0}, std::size_t{3}, std::size_t{5000}, std::size_t{60'000}}) {
      const std::size_t third = count / 3;
      const Given bell = given_by(rank, type, Kind::kBell, count, {third, third / 2, count - third - third / 2});
      for (const char* codec : {"fpk", "none"}) compare(gpu, which, bell, codec, ReduceOp::kSum, {}, 8192);
      compare(gpu, which, bell, "fpk", ReduceOp::kAvg, {}, 256 << 10);
      compare(gpu, which, bell, "zhuff", ReduceOp::kMax, {}, 16384);  // has no device form
    }
  const Given bits = given_by(rank, Datatype::kF32, Kind::kSmallIntegers, 60'000, {60'000});
  compare(gpu, which, bits, "fpk", ReduceOp::kMax, {}, 8192);
  const Given counters = given_by(rank, Datatype::kU32, Kind::kRareLarge, 60'000, {10, 59'990});
  compare(gpu, which, counters, "fpk", ReduceOp::kSum, {}, 8192);
  const Given sparse = given_by(rank, Datatype::kF32, Kind::kSparse, 200'000, {200'000});
  compare(gpu, which, sparse, "fpk", ReduceOp::kSum, {}, 0);
}

/// A chunk of noise among others stays as it is, a tensor that is constant is a chunk of nothing.
void bounded(const Gpu& gpu, int which) {
  const int rank = gpu.group.rank();
  for (const Datatype type : floats(which))
    for (const bool has_residual : {false, true})
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        Given given = given_by(rank, type, Kind::kBell, 50'000, {20'000, 7, 29'993});
        const std::size_t width = element_bytes(type), noise = 8192;
        Buffer other = make(Kind::kBits, type, noise, 5 + rank);
        // No NaN: which one a sum of them is differs for float16 (device/cuda_reduce.hpp).
        for (std::size_t i = width - 1; i < other.size(); i += width) other[i] &= std::byte{0xbf};
        std::memcpy(given.values.data() + 21'000 * width, other.data(), noise * width);
        std::memset(given.values.data() + 40'000 * width, 0, 4096 * width);
        given.has_residual = has_residual;
        compare(gpu, which, given, "qpk", op, {1e-3, false}, 8192);
      }
  // Long enough for a lane of each rank of a node.
  Given lanes = given_by(rank, Datatype::kF32, Kind::kBell, 150'000, {150'000});
  lanes.has_residual = true;
  compare(gpu, which, lanes, "qpk", ReduceOp::kAvg, {1e-3, false}, 8192);
}

/// A relative bound comes from standard deviations that each rank finds where its tensors are: every rank has the same
/// bits, and they are within the bound.
void relative(const Gpu& gpu, int which) {
  Group& group = gpu.group;
  const std::size_t count = 40'000;
  StreamOptions options = stream_options("qpk", 8192, "");
  options.bound = {0.05, true};
  Given mine = given_by(group.rank(), Datatype::kF32, Kind::kBell, count, {count});
  mine.has_residual = true;
  std::vector<double> wanted(count);
  for (int rank = 0; rank < group.size(); ++rank) {
    const Given one = given_by(rank, Datatype::kF32, Kind::kBell, count, {count});
    for (std::size_t i = 0; i < count; ++i) wanted[i] += reinterpret_cast<const float*>(one.values.data())[i];
  }
  if (is_on_device(group.rank(), which))
    allreduce_on_device(gpu, mine, ReduceOp::kSum, options);
  else
    allreduce_on_host(group, mine, ReduceOp::kSum, options);
  Buffer theirs = mine.values;
  group.bcast(theirs, Datatype::kF32, group.size() - 1);
  CHECK(theirs == mine.values);
  group.allreduce(mine.residual, mine.residual, Datatype::kF32, ReduceOp::kSum);
  for (std::size_t i = 0; i < count; ++i) {
    const float got = reinterpret_cast<const float*>(mine.values.data())[i];
    CHECK(std::abs(got - wanted[i]) <= 0.05 * 0.03125 * std::sqrt(group.size()) * 1.05 + 1e-6);
    CHECK(std::abs(got + reinterpret_cast<const float*>(mine.residual.data())[i] - wanted[i]) <= 1e-5);
  }
}

/// "auto" samples what is on the device; the sum has the bits of an allreduce without codecs, whatever it chose, time
/// after time.
void automatic(const Gpu& gpu, int which) {
  Group& group = gpu.group;
  const std::size_t count = 300'000;
  for (int turn = 0; turn < 4; ++turn) {
    Given mine =
        given_by(group.rank() + turn, Datatype::kF32, turn % 2 ? Kind::kBits : Kind::kSmallIntegers, count, {count});
    for (std::size_t i = 0; i < count; ++i) mine.values[4 * i + 3] &= std::byte{0xbf};  // no NaN
    Buffer wanted = mine.values;
    group.allreduce(wanted, wanted, Datatype::kF32, ReduceOp::kSum);
    const StreamOptions options = stream_options("auto", 0, "");
    if (is_on_device(group.rank(), which))
      allreduce_on_device(gpu, mine, ReduceOp::kSum, options);
    else
      allreduce_on_host(group, mine, ReduceOp::kSum, options);
    CHECK(mine.values == wanted);
  }
}

/// ans travels where all ranks work on their devices; else all use what stands in for it.
void on_devices_only(const Gpu& gpu, int which) {
  Group& group = gpu.group;
  const Topology& t = group.topology();
  if (t.nodes() == 1) return;
  bool all_on_device = true;
  for (int rank = 0; rank < t.size(); ++rank)
    all_on_device &= is_on_device(rank, which) && (g_shares || t.leader(t.node_of(rank)) == rank);
  for (const std::size_t count : {std::size_t{60'000}, std::size_t{200'000}}) {
    const Given given = given_by(group.rank(), Datatype::kF32, Kind::kSparse, count, {count - 7, 7});
    Given wanted = given, mine = given;
    const StreamOptions options = stream_options("ans", 8192, "");
    const StreamReport on_host = allreduce_on_host(group, wanted, ReduceOp::kSum, options);
    const bool on_device = is_on_device(group.rank(), which);
    const StreamReport report = on_device ? allreduce_on_device(gpu, mine, ReduceOp::kSum, options)
                                          : allreduce_on_host(group, mine, ReduceOp::kSum, options);
    CHECK(mine.values == wanted.values);
    if (!t.is_leader()) continue;  // others may have no part of the wire
    CHECK(on_host.codec == "fpk");
    CHECK(report.codec == (all_on_device ? "ans" : "fpk"));
    CHECK(report.codec_place == (works_on_device(t, which) ? "device" : "host"));
  }
}

void everything_reduced(Group& group) {
  cudasim::set_jitter(5, 4);
  Gpu gpu(group);
  for (int which = 0; which < (group.size() > 2 ? 4 : 3); ++which) {
    exact(gpu, which);
    bounded(gpu, which);
    relative(gpu, which);
    automatic(gpu, which);
    if (g_has_nvcomp) on_devices_only(gpu, which);
  }
  CHECK(cudasim::late_loads() == 0);
  CHECK(await_readers(std::chrono::seconds(10)));  // what they read of each other's pools, they say
}

/// A call of rank `failing` fails in the middle: all ranks hear of it, by name.
void failure(int failing, const std::function<void()>& inject, const char* text,
             const std::vector<int>& nodes = {0, 1}) {
  CHECK(run_processes_on_nodes(nodes, [&](Group& group) {
    Gpu gpu(group);
    StreamOptions options = stream_options("qpk", 8192, "");
    options.bound = {1e-3, false};
    auto call = [&] {
      Given mine = given_by(group.rank(), Datatype::kF32, Kind::kBell, 50'000, {50'000});
      mine.has_residual = true;
      allreduce_on_device(gpu, mine, ReduceOp::kSum, options);
    };
    fails_on_all(gpu, failing, inject, text, call);
  }));
}

/// Sets of addresses, which tell what the host and the device have: against a table of bytes.
void ranges() {
  constexpr std::size_t kBytes = 200;
  const Buffer memory(kBytes);
  std::vector<bool> table(kBytes);
  Ranges set;
  Random random{3};
  for (int turn = 0; turn < 3000; ++turn) {
    const std::size_t begin = random.below(kBytes), bytes = random.below(random.below(2) ? 5 : kBytes - begin + 1);
    const ConstBytes range = ConstBytes(memory).subspan(begin, std::min(bytes, kBytes - begin));
    const bool adds = random.below(2);
    adds ? set.add(range) : set.remove(range);
    for (std::size_t i = 0; i < range.size(); ++i) table[begin + i] = adds;
    std::vector<bool> found(kBytes, true);
    set.gaps(memory, [&](ConstBytes gap) {
      for (std::size_t i = 0; i < gap.size(); ++i) found[gap.data() - memory.data() + i] = false;
    });
    CHECK(found == table);
    const std::size_t at = random.below(kBytes), length = random.below(kBytes - at + 1);
    const bool any = std::find(table.begin() + at, table.begin() + at + length, true) != table.begin() + at + length;
    CHECK(set.has_any(ConstBytes(memory).subspan(at, length)) == any);
  }
}

int main() {
  ranges();
  g_has_nvcomp = has_batched_nvcomp();
  set_setting("ACCDP_CACHE_DIR", "-");
  CHECK(run_ranks(2, everything_reduced));  // one node: nothing is encoded
  CHECK(run_processes_on_nodes({0, 1}, everything_reduced));
  CHECK(run_processes_on_nodes({0, 1, 2}, everything_reduced));
  set_setting("ACCDP_GPU_SLOT_BYTES", "64k");
  CHECK(run_processes_on_nodes({0, 0, 1, 1}, everything_reduced));
  CHECK(run_processes_on_nodes({0, 0, 1}, everything_reduced));
  g_shares = false;
  CHECK(run_processes_on_nodes({0, 1, 1}, [](Group& group) {
    cudasim::set_devices(1, group.rank());
    cudasim::set_islands(1);
    Gpu gpu(group);
    exact(gpu, 0);
    if (g_has_nvcomp) on_devices_only(gpu, 0);
  }));
  CHECK(run_processes_on_nodes({0, 1, 1}, [](Group& group) {
    cudasim::fail("cudaIpcOpenMemHandle", cudaErrorNotSupported);
    Gpu gpu(group);
    exact(gpu, 0);
    CHECK(group.rank() == 0 || gpu.path->describe().find("staged: memory of another process cannot be opened") == 0);
  }));
  failure(0, [] { cudasim::fail("cudaLaunchKernelExC", cudaErrorLaunchFailure, 30); }, "cudaErrorLaunchFailure");
  // The first two allocations are the test's own.
  failure(1, [] { cudasim::fail("cudaMalloc", cudaErrorMemoryAllocation, 9); }, "cudaErrorMemoryAllocation");
  failure(0, [] { cudasim::fail("cudaEventSynchronize", cudaErrorLaunchFailure, 3); }, "cudaEventSynchronize");
  for (int leader : {0, 2})
    failure(leader, [] { cudasim::fail("cudaLaunchKernelExC", cudaErrorLaunchFailure, 5); }, "cudaErrorLaunchFailure",
            {0, 0, 1, 1});
  // The first copies are of the probe of events, which then goes without.
  failure(1, [] { cudasim::fail("cudaMemcpyAsync", cudaErrorLaunchFailure, 20); }, "cudaMemcpyAsync", {0, 0, 1, 1});
}
