// Deterministic reductions of device memory: the same bits for every placement of 8 ranks on GPUs and nodes, which are
// those of host memory. Every rank is a process.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "device_checks.hpp"
#include "process_wire.hpp"
#include "remembered.hpp"

/// What floats of a type can be made of: how far apart, in powers of two, the values of ranks are, so that float32 (and
/// float64 of its own) loses what the smallest say beside the largest. That of float8_e4m3fn cannot be so far apart.
struct Range {
  Datatype type;
  int least, step;
};
constexpr Range kRanges[] = {{Datatype::kF16, -6, 6},    {Datatype::kBF16, -10, 10}, {Datatype::kF32, -6, 6},
                             {Datatype::kF64, -6, 6},    {Datatype::kC64, -6, 6},    {Datatype::kF8E4M3, -4, 4},
                             {Datatype::kF8E5M2, -10, 8}};

/// Floats whose sum depends on the order, in memory of `type`: small ones, larger ones, and mostly the same with the
/// other sign.
std::vector<std::byte> made_unordered(int rank, std::size_t count, const Range& range) {
  const std::size_t width = element_bytes(range.type), parts = range.type == Datatype::kC64 ? 2 : 1;
  std::mt19937_64 random(static_cast<unsigned>(rank % 4)), own(static_cast<unsigned>(100 + rank));
  std::vector<double> exact(count * parts);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const std::uint64_t bits = i % 4 == 3 ? (random(), own()) : random();
    const double digits = static_cast<double>(bits >> 11) / (1ull << 53) - 0.5;
    exact[i] = std::ldexp(rank < 4 ? digits : -digits, range.least + range.step * (rank % 4));
  }
  std::vector<std::byte> values(count * width);
  if (range.type == Datatype::kF64) {
    std::memcpy(values.data(), exact.data(), values.size());
    return values;
  }
  const std::vector<float> wide(exact.begin(), exact.end());
  if (width >= sizeof(float))
    std::memcpy(values.data(), wide.data(), values.size());
  else
    narrow(values.data(), wide.data(), count, range.type);
  return values;
}
std::vector<std::byte> unordered(int rank, std::size_t count, const Range& range) {
  static Remembered<std::tuple<int, std::size_t, Datatype>, std::vector<std::byte>> known;
  return known.get({rank, count, range.type}, [&] { return made_unordered(rank, count, range); });
}

/// Bytes on the device, written and read by the stream.
class RawArray {
 public:
  RawArray(const Gpu& gpu, std::vector<std::byte> values)
      : gpu_(&gpu), host_(std::move(values)), device_(host_.size() + 1) {
    copy_async(device_.data(), host_.data(), host_.size(), gpu.stream());
  }
  RawArray(const RawArray&) = delete;
  ~RawArray() { gpu_->take_back(std::move(device_), std::move(host_)); }
  Bytes bytes() const { return {device_.data(), host_.size()}; }
  std::vector<std::byte> values() const {
    std::vector<std::byte> found(host_.size());
    copy_async(found.data(), device_.data(), found.size(), gpu_->stream());
    gpu_->synchronize();
    return found;
  }

 private:
  const Gpu* gpu_;
  std::vector<std::byte> host_;  // outlives the copy from it
  DeviceBuffer device_;
};

/// What all ranks' contributions give when they are reduced in the order of their numbers.
std::vector<std::byte> made_reduced(std::size_t count, const Reduction& how, const Range& range) {
  std::vector<std::vector<std::byte>> all;
  std::vector<const void*> sources;
  for (int rank = 0; rank < how.divisor; ++rank) all.push_back(unordered(rank, count, range));
  for (const std::vector<std::byte>& one : all) sources.push_back(one.data());
  std::vector<std::byte> result(all[0].size()), reversed(result.size());
  reduce(result.data(), sources, count, how);
  std::reverse(sources.begin(), sources.end());
  reduce(reversed.data(), sources, count, how);
  // Or the test would show nothing.
  CHECK(count < 100 || (result != reversed) == (how.type != Datatype::kF8E4M3));
  return result;
}

std::vector<std::byte> reduced_in_order(std::size_t count, const Reduction& how, const Range& range) {
  static Remembered<std::tuple<std::size_t, Datatype, ReduceOp, int>, std::vector<std::byte>> known;
  return known.get({count, how.type, how.op, how.divisor}, [&] { return made_reduced(count, how, range); });
}

constexpr std::size_t kLengths[] = {3, 1000, 60'001};
ReduceOp op_of(std::size_t count) { return count == 1000 ? ReduceOp::kAvg : ReduceOp::kSum; }

/// Reductions of a deterministic group: the bits of one order, which is the same for every placement and for host
/// memory.
void in_rank_order_on_device(const Gpu& gpu, bool goes_over_gpus) {
  Group& group = gpu.group;
  const int rank = group.rank(), size = group.size(), root = size - 1;
  group.set_deterministic(true);
  DeviceCollectives via = gpu.via();
  for (const Range& range : kRanges)
    for (std::size_t count : kLengths) {
      const Datatype type = range.type;
      const ReduceOp op = op_of(count);
      const std::vector<std::byte> own = unordered(rank, count, range);
      const std::vector<std::byte> wanted = reduced_in_order(count, {type, op, size}, range);
      const RawArray mine(gpu, own), at_root(gpu, own), kept(gpu, own);
      group.allreduce(mine.bytes(), mine.bytes(), type, op, -1, via);
      if (goes_over_gpus && count > 1000) CHECK(std::string(group.last_run().way.algorithm) == "gpu_rank_order");
      CHECK(mine.values() == wanted);
      group.reduce(kept.bytes(), rank == root ? at_root.bytes() : Bytes(), type, op, root, -1, via);
      CHECK(at_root.values() == (rank == root ? wanted : own));
      CHECK(kept.values() == own);
      std::vector<std::byte> on_host = own;
      group.allreduce(std::as_writable_bytes(std::span(on_host)), std::as_writable_bytes(std::span(on_host)), type, op);
      CHECK(on_host == wanted);
      // Blocks of different size.
      const std::size_t width = element_bytes(type), each = count / size;
      std::vector<ConstBytes> parts;
      for (int r = 0; r < size; ++r) {
        const std::size_t end = r + 1 == size ? count : (r + 1) * each;
        parts.push_back(ConstBytes(kept.bytes()).subspan(r * each * width, (end - r * each) * width));
      }
      const RawArray part(gpu, std::vector<std::byte>(parts[rank].size()));
      group.reduce_scatter(parts, part.bytes(), type, op, -1, via);
      const auto begin = wanted.begin() + static_cast<std::ptrdiff_t>(rank * each * width);
      CHECK(part.values() == std::vector<std::byte>(begin, begin + static_cast<std::ptrdiff_t>(part.bytes().size())));
    }
  group.set_deterministic(false);
}

/// Whether that path joins several GPU groups.
bool is_joined(const std::string& path) {
  return path.find("staged") != 0 &&
         (path.find("nodes") != std::string::npos || path.find("apart") != std::string::npos ||
          path.find("islands") != std::string::npos);
}

/// path: how data must go.
void run(const std::vector<int>& nodes, const std::string& path, const std::function<void(int)>& prepare) {
  CHECK(run_processes_on_nodes(nodes, [&](Group& group) {
    prepare(group.rank());
    cudasim::set_jitter(20, 4);
    const Gpu gpu(group);
    in_rank_order_on_device(gpu, is_joined(path));
    if (gpu.path->describe().find(path) != 0) std::fprintf(stderr, "path: %s\n", gpu.path->describe().c_str());
    CHECK(gpu.path->describe().find(path) == 0);
  }));
}

void one_gpu(int) {}
void two_gpus_apart(int rank) {
  cudasim::set_devices(1, rank % 2);
  cudasim::set_islands(1);
}

int main() {
  set_setting("ACCDP_GPU_SLOT_BYTES", "64k");
  // For all ranks of all placements, which are forked from this process.
  for (const Range& range : kRanges)
    for (std::size_t count : kLengths) reduced_in_order(count, {range.type, op_of(count), 8}, range);
  const std::vector<int> one_node(8, 0), two{0, 0, 0, 0, 1, 1, 1, 1}, four{0, 1, 2, 3, 0, 1, 2, 3};
  run(one_node, "shared GPU, ordered by events", one_gpu);
  run(one_node, "peer GPUs", [](int rank) { cudasim::set_devices(1, rank / 2); });
  run(one_node, "2 GPUs apart", two_gpus_apart);
  run(one_node, "2 islands of peer GPUs", [](int rank) {
    cudasim::set_devices(1, rank / 2);
    cudasim::set_islands(2);
  });
  run(two, "shared GPU on each of 2 nodes", one_gpu);
  run(two, "2 GPUs apart on each of 2 nodes", two_gpus_apart);
  run(four, "shared GPU on each of 4 nodes", one_gpu);
  run({0, 1, 2, 3, 4, 5, 6, 7}, "staged: the ranks are on several nodes", one_gpu);
  run({0, 1, 0, 2, 1, 0, 2, 2}, "shared GPU on each of 3 nodes", one_gpu);
  set_setting("ACCDP_MPI_CUDA", "on");
  run(four, "shared GPU on each of 4 nodes, ordered by events, joined by MPI on device memory", one_gpu);
  set_setting("ACCDP_GPU_PATH", "staged");
  run(two, "staged: ACCDP_GPU_PATH=staged", one_gpu);
}
