#include "over_gpus.hpp"

#include <cstring>

namespace {

void prepare_and_check(Group& group, const Prepare& prepare, const std::string& path, const Check& check) {
  prepare(group.rank());
  cudasim::set_jitter(20, 4);
  Gpu gpu(group);
  check(gpu);
  if (gpu.path->describe().find(path) != 0) std::fprintf(stderr, "path: %s\n", gpu.path->describe().c_str());
  CHECK(gpu.path->describe().find(path) == 0);
  one_block(group, 1000);  // host memory in the same group
}

}  // namespace

void every_size(const Gpu& gpu) { everything_on_device(gpu); }

void run(const std::vector<int>& nodes, const std::string& path, const Prepare& prepare, const Check& check) {
  CHECK(run_processes_on_nodes(nodes, [&](Group& group) { prepare_and_check(group, prepare, path, check); }));
}

void gpu_of(int gpu, int island) {
  cudasim::set_devices(1, gpu);
  cudasim::set_islands(island);
}

void long_messages(const Gpu& gpu) {
  Group& group = gpu.group;
  constexpr std::size_t kLongest = 500'001;
  for (std::size_t count : {std::size_t{16} << 10, (std::size_t{80} << 10) + 3, kLongest})
    for (int root = 0; root < group.size(); root += count < kLongest ? 1 : group.size() - 1) {
      const Array data(gpu, group.rank() == root ? input(root, count) : Ints(count));
      const Array mine(gpu, input(group.rank(), count)), result(gpu, count);
      DeviceCollectives via = gpu.via();
      group.bcast(data.bytes(), kType, root, -1, via);
      CHECK(std::string(group.last_run().way.algorithm) == "gpu_lanes");
      const bool is_root = group.rank() == root;
      group.reduce(mine.bytes(), is_root ? result.bytes() : Bytes(), kType, ReduceOp::kMax, root, -1, via);
      CHECK(std::string(group.last_run().way.algorithm) == "gpu_lanes");
      CHECK(data.values() == input(root, count));
      CHECK(mine.values() == input(group.rank(), count));
      CHECK(result.values() == (is_root ? input(group.size() - 1, count) : Ints(count, -1)));
    }
}

void averages(const Gpu& gpu) {
  Group& group = gpu.group;
  const std::size_t count = 200'000;
  Ints bits(count / 2);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const float value = 1.0f + static_cast<float>((i * 7 + group.rank() * 13) % 251) / 64;
    std::uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    bits[i] = static_cast<std::int32_t>(word & 0xffff0000u) | static_cast<std::int32_t>(word >> 16);
  }
  const Array data(gpu, bits);
  DeviceCollectives via = gpu.via();
  group.allreduce(data.bytes(), data.bytes(), Datatype::kBF16, ReduceOp::kAvg, -1, via);
  const Ints found = data.values();
  Ints first = found;
  group.bcast(bytes(first), kType, 0);
  CHECK(found == first);
  for (std::size_t i = 0; i < found.size(); i += 997) {
    float wanted = 0;
    for (int r = 0; r < group.size(); ++r) wanted += 1.0f + static_cast<float>((i * 7 + r * 13) % 251) / 64;
    const std::uint32_t word = static_cast<std::uint32_t>(found[i]) & 0xffff0000u;
    float got;
    std::memcpy(&got, &word, sizeof got);
    wanted /= static_cast<float>(group.size());
    CHECK(std::abs(got - wanted) <= 0.03f * wanted);
  }
}

void few_pairs(const Gpu& gpu) {
  Group& group = gpu.group;
  const int rank = group.rank();
  auto count = [](int from, int to) { return from == 1 && to == 0 ? std::size_t{100'003} : std::size_t{to == 2}; };
  const std::vector<Array> outgoing = arrays(gpu, [&](int q) { return input(10 * rank + q, count(rank, q)); });
  const std::vector<Array> incoming = arrays(gpu, [&](int q) { return Ints(count(q, rank)); });
  DeviceCollectives via = gpu.via();
  group.alltoall(readable(outgoing), writable(incoming), kType, -1, via);
  CHECK(std::string(group.last_run().way.algorithm) == "gpu_pairs");
  for (int q = 0; q < group.size(); ++q) CHECK(incoming[q].values() == input(10 * q + rank, count(q, rank)));
  const Array own(gpu, input(rank, 7)), received(gpu, 7);
  const std::vector<Array> all = arrays(gpu, [](int) { return Ints(7); });
  group.gather(own.bytes(), rank == 1 ? writable(all) : std::vector<Bytes>{}, kType, 1, -1, via);
  CHECK(std::string(group.last_run().way.algorithm) == "gpu_pairs");
  group.scatter(rank == 1 ? readable(all) : std::vector<ConstBytes>{}, received.bytes(), kType, 1, -1, via);
  CHECK(std::string(group.last_run().way.algorithm) == "gpu_pairs");
  CHECK(received.values() == own.values());
}

void both(const Gpu& gpu) {
  long_messages(gpu);
  averages(gpu);
  few_pairs(gpu);
  for (std::size_t count : {5000, 40'000}) many_blocks_on_device(gpu, count);
}
