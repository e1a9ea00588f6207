#include "gpu/gpu_steps.hpp"

#include "device/cuda_reduce.hpp"

namespace accdp {

void sum_on_each_gpu(Context& c, Pool& pool, std::span<const LaneCut> lanes, const Reduction& how) {
  const GpuGroups& gpus = pool.gpus();
  std::vector<const std::byte*> shown;
  for (int mate : gpus.mates()) shown.push_back(pool.slot(mate));
  std::byte* const slot = pool.open(c);
  for (int lane : gpus.lanes_of(c.local_rank())) {
    const LaneCut cut = lanes[lane];
    std::vector<const void*> sources;
    for (const std::byte* from : shown) sources.push_back(from + cut.at);
    if (sources.size() > 1)
      reduce_async(slot + cut.at, nullptr, sources, cut.bytes / element_bytes(how.type), how.partial(), pool.stream());
    else
      copy_async(slot + cut.at, shown.front() + cut.at, cut.bytes, pool.stream());
  }
  pool.publish(c);
  pool.await_all(c);
}

std::vector<const void*> contributions(const Pool& pool, int lane, std::size_t at, bool by_gpus) {
  std::vector<const void*> sources;
  if (!by_gpus)
    for (int mate : pool.groups().mates()) sources.push_back(pool.slot(mate) + at);
  for (int gpu = 0; by_gpus && gpu < pool.gpus().count(); ++gpu) {
    const int agent = pool.gpus().agent(gpu, lane);
    if (pool.groups().of(agent) == pool.groups().mine()) sources.push_back(pool.slot(agent) + at);
  }
  return sources;
}

void take_shown(Context& c, Pool& pool, std::span<const Shown> parts, bool by_gpus) {
  const GpuGroups& gpus = pool.gpus();
  auto comes_relayed = [&](const Shown& part) { return by_gpus && gpus.of(part.holder) != gpus.mine(); };
  std::vector<Copy> taken;
  auto take = [&](const Shown& part, const std::byte* from) {
    if (part.to) taken.push_back({part.to, from, part.bytes, false});
    // Often in the host's memory, to which copy engines take what a kernel would hold the device for.
    if (part.also) copy_async(part.also, from, part.bytes, pool.stream());
  };
  for (const Shown& part : parts)
    if (!comes_relayed(part)) take(part, pool.slot(part.holder) + part.at);
  pool.copy(taken);
  if (!by_gpus) return;
  taken.clear();
  auto agent = [&](const Shown& part) { return gpus.agent(gpus.mine(), part.lane); };
  std::vector<const std::byte*> held;
  for (const Shown& part : parts) held.push_back(pool.slot(part.holder) + part.at);
  std::byte* const slot = pool.open(c);
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (comes_relayed(parts[i]) && agent(parts[i]) == c.local_rank())
      copy_async(slot + parts[i].relay_at, held[i], parts[i].bytes, pool.stream());
  pool.publish(c);
  pool.await_all(c);
  for (const Shown& part : parts)
    if (comes_relayed(part)) take(part, pool.slot(agent(part)) + part.relay_at);
  pool.copy(taken);
}

}  // namespace accdp
