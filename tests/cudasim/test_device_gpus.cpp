// Collectives on device memory of ranks on several GPUs of a node: that reach each other, that do not, and islands of
// those that do; on one node and on several.
#include "gpu/gpu_groups.hpp"
#include "over_gpus.hpp"

void groups_of_ranks() {
  // Every lane has one owner, which works for it in its group, and one agent in each other group.
  for (const std::vector<int>& group_of : {std::vector<int>{0}, {0, 0, 0}, {0, 1}, {0, 1, 0, 1}, {0, 1, 1, 1}}) {
    const int ranks = static_cast<int>(group_of.size());
    for (int lanes = 1; lanes <= ranks; ++lanes)
      for (int me = 0; me < ranks; ++me) {
        const GpuGroups groups(me, group_of, lanes);
        CHECK(groups.mine() == group_of[me]);
        std::vector<int> seen(lanes);
        for (int mate : groups.mates()) {
          CHECK(groups.of(mate) == groups.mine());
          for (int lane : groups.lanes_of(mate)) {
            ++seen[lane];
            CHECK(groups.agent(groups.mine(), lane) == mate);
          }
        }
        CHECK(seen == std::vector<int>(lanes, 1));
        const int own = groups.own_lane();
        CHECK(own < 0 || (groups.owner(own) == me && groups.agent(groups.mine(), own) == me));
        if (lanes == ranks) CHECK(own == me);
      }
  }
  CHECK(GpuGroups(0, {0, 1, 1, 1}, 4).largest() == 3);
  CHECK(GpuGroups(0, {0, 1, 1, 1}, 4).lanes_of(0) == (std::vector<int>{0, 1, 2, 3}));
  CHECK(GpuGroups(0, {0, 1, 0, 1}, 4).lanes_of(2) == (std::vector<int>{2, 3}));
  // Fewer lanes than ranks: their owners are spread over the node, and work is spread over each group.
  const GpuGroups few(1, {0, 0, 1, 1}, 2);
  CHECK(few.owner(0) == 0 && few.owner(1) == 2 && few.own_lane() == -1);
  CHECK(few.agent(0, 1) == 1 && few.agent(1, 0) == 3);
}

void groups_by_reach() {
  using Of = std::vector<int>;
  const auto all_of = [](const Of& island) {  // each reaches those of its own
    std::vector<std::uint32_t> reached;
    for (int mine : island) {
      std::uint32_t bits = 0;
      for (std::size_t rank = 0; rank < island.size(); ++rank)
        if (island[rank] == mine) bits |= 1u << rank;
      reached.push_back(bits);
    }
    return reached;
  };
  CHECK(group_by_reach({0, 0, 1}, all_of({0, 0, 0})) == (Of{0, 0, 0}));
  CHECK(group_by_reach({0, 1, 2, 3}, all_of({0, 1, 0, 1})) == (Of{0, 1, 0, 1}));
  CHECK(group_by_reach({0, 0, 1, 1, 2, 2}, all_of({0, 0, 1, 1, 0, 0})) == (Of{0, 0, 1, 1, 0, 0}));
  // GPU 1 reaches 0 and 2, which do not reach each other.
  CHECK(group_by_reach({0, 1, 2}, {0b011, 0b111, 0b110}) == (Of{0, 0, 1}));
  // One way is none.
  CHECK(group_by_reach({0, 1}, {0b11, 0b10}) == (Of{0, 1}));
  // One rank of GPU 1 does not reach what the other does.
  CHECK(group_by_reach({0, 1, 1}, {0b111, 0b111, 0b110}) == (Of{0, 1, 1}));
  CHECK(group_by_reach({0, 0, 1}, {0b101, 0b110, 0b111}).empty());
  CHECK(group_by_reach({0, 1, 1}, {0b111, 0b111, 0b101}).empty());
}

/// Two islands of two GPUs with two ranks each: what both ranks of a GPU want comes there once.
void bytes_in_islands(const Gpu& gpu) {
  const std::size_t count = 300'001, bytes = count * sizeof(std::int32_t);
  one_block_on_device(gpu, 10);  // sets up the pool
  const Array data(gpu, gpu.group.rank() == 0 ? input(0, count) : Ints(count));
  const std::size_t found =
      bytes_over_links(gpu, [&](DeviceCollectives& via) { gpu.group.bcast(data.bytes(), kType, 0, -1, via); });
  CHECK(data.values() == input(0, count));
  CHECK(found == 2 * bytes);  // to the other GPU of the root's island; half of it each way between those of the other
  const Array sum(gpu, count);
  const std::size_t of_sum = bytes_over_links(gpu, [&](DeviceCollectives& via) {
    gpu.group.allreduce(data.bytes(), sum.bytes(), kType, ReduceOp::kSum, -1, via);
  });
  CHECK(of_sum == 2 * bytes);  // of each island, half of the result each way; kernels are not counted
}

int main() {
  groups_of_ranks();
  groups_by_reach();
  set_setting("ACCDP_GPU_SLOT_BYTES", "64k");
  run({0, 0, 1, 1}, "peer GPUs on each of 2 nodes", [](int rank) { cudasim::set_devices(1, rank); }, both);
  // GPUs of a node that reach each other, with several ranks on each.
  auto two_on_each = [](int rank) { cudasim::set_devices(1, rank / 2 % 2); };
  run({0, 0, 0, 0, 1, 1, 1, 1}, "peer GPUs on each of 2 nodes", two_on_each, both);
  run(
      {0, 0, 0, 1, 1}, "peer GPUs on each of 2 nodes",
      [](int rank) { cudasim::set_devices(1, rank == 2 || rank == 3); }, both);
  run({0, 0, 0, 0}, "peer GPUs, ordered by events", two_on_each, averages);
  // GPUs of a node without peer access, two ranks on each; one and three; and that on two nodes.
  run({0, 0, 0, 0}, "2 GPUs apart, ordered by events, joined through host memory", [](int rank) { gpu_of(rank / 2); });
  run({0, 0, 0, 0}, "2 GPUs apart", [](int rank) { gpu_of(rank == 2); }, both);
  run({0, 0, 0, 0, 1, 1, 1, 1}, "2 GPUs apart on each of 2 nodes", [](int rank) { gpu_of(rank % 2); }, both);
  // Islands: of two GPUs with a rank each, also in turns; of two with two each; of two and of one.
  run(
      {0, 0, 0, 0}, "2 islands of peer GPUs, ordered by events, joined through host memory",
      [](int rank) { gpu_of(rank, 2); }, both);
  run({0, 0, 0, 0}, "2 islands of peer GPUs", [](int rank) { gpu_of(Ints{0, 2, 1, 3}[rank], 2); });
  run({0, 0, 0, 0, 0, 0, 0, 0}, "2 islands of peer GPUs", [](int rank) { gpu_of(rank / 2, 2); }, both);
  run({0, 0, 0, 0, 0, 0, 0, 0}, "2 islands", [](int rank) { gpu_of(rank / 2, 2); }, bytes_in_islands);
  run({0, 0, 0, 0, 0}, "2 islands of peer GPUs", [](int rank) { gpu_of(Ints{0, 2, 0, 1, 2}[rank], 2); }, both);
  run(
      {0, 0, 0, 0, 0}, "2 islands of peer GPUs, ordered by the host",
      [](int rank) {
        if (rank == 3) cudasim::fail_always("cudaIpcOpenEventHandle", cudaErrorNotSupported);
        gpu_of(Ints{0, 2, 0, 1, 2}[rank], 2);
      },
      long_messages);
  run(
      {0, 0, 0, 1, 0, 1}, "", [](int rank) { gpu_of(Ints{0, 0, 1, 1, 2, 1}[rank], 2); },
      [](const Gpu& gpu) {
        both(gpu);
        const char* const path = gpu.group.topology().node() == 0 ? "2 islands of peer GPUs on" : "shared GPU on";
        CHECK(gpu.path->describe().find(path) == 0);
      });
  // One node has two groups, the other one.
  run({0, 0, 1, 1}, "", [](int rank) { gpu_of(rank == 1); }, both);
  // Nodes with different numbers of ranks.
  run({0, 0, 0, 1, 1, 2}, "", [](int rank) { gpu_of(rank == 2); }, both);
  run({0, 1, 1, 1, 1}, "", [](int rank) { gpu_of(rank > 2); }, both);
  run({0, 1, 1, 0, 0}, "peer GPUs on each of 2 nodes", [](int rank) { cudasim::set_devices(1, rank / 2); }, both);

  // MPI takes device memory, which here is host memory.
  set_setting("ACCDP_MPI_CUDA", "on");
  run(
      {0, 0, 0, 0, 1, 1, 1, 1}, "2 GPUs apart on each of 2 nodes, ordered by events, joined through host memory",
      [](int rank) { gpu_of(rank / 2 % 2); }, both);
  run({0, 0, 0, 0, 1, 1, 1, 1}, "peer GPUs on each of 2 nodes, ordered by events, joined by MPI on device memory",
      two_on_each, both);
}
