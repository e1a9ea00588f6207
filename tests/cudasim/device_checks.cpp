#include "device_checks.hpp"

std::shared_ptr<DevicePath> device_path(Group& group) {
  return std::make_shared<DevicePath>(std::shared_ptr<Group>(std::shared_ptr<void>(), &group));
}

std::vector<Array> arrays(const Gpu& gpu, const std::function<Ints(int)>& make) {
  std::vector<Array> made;
  for (int r = 0; r < gpu.group.size(); ++r) made.emplace_back(gpu, make(r));
  return made;
}

std::vector<Bytes> writable(const std::vector<Array>& list) {
  std::vector<Bytes> spans;
  for (const Array& one : list) spans.push_back(one.bytes());
  return spans;
}

std::vector<ConstBytes> readable(const std::vector<Array>& list) {
  const std::vector<Bytes> all = writable(list);
  return {all.begin(), all.end()};
}

void fails_on_all(const Gpu& gpu, int failing, const std::function<void()>& inject, const char* text,
                  const std::function<void()>& call) {
  if (gpu.group.rank() == failing) {
    inject();
    CHECK_THROWS(call(), CudaError, text);
  } else {
    CHECK_THROWS(call(), Error, "rank " + std::to_string(failing) + " (pid");
  }
  CHECK_THROWS(call(), Error, text);
  gpu.synchronize();
}

void one_block_on_device(const Gpu& gpu, std::size_t count) {
  Group& group = gpu.group;
  const int rank = group.rank(), size = group.size();
  for (int root : {0, size - 1}) {
    const Array data(gpu, rank == root ? input(root, count) : Ints(count));
    DeviceCollectives via = gpu.via();
    group.bcast(data.bytes(), kType, root, -1, via);
    const Array mine(gpu, input(rank, count)), result(gpu, count);
    group.reduce(mine.bytes(), rank == root ? result.bytes() : Bytes(), kType, ReduceOp::kSum, root, -1, via);
    CHECK(data.values() == input(root, count));
    CHECK(mine.values() == input(rank, count));
    CHECK(result.values() == (rank == root ? sum_of_inputs(size, count) : Ints(count, -1)));
  }
  const Array mine(gpu, input(rank, count)), result(gpu, count);
  DeviceCollectives via = gpu.via();
  group.allreduce(mine.bytes(), result.bytes(), kType, ReduceOp::kSum, -1, via);
  CHECK(result.values() == sum_of_inputs(size, count));
  group.allreduce(mine.bytes(), mine.bytes(), kType, ReduceOp::kSum, -1, via);
  CHECK(mine.values() == sum_of_inputs(size, count));
}

void many_blocks_on_device(const Gpu& gpu, std::size_t count) {
  Group& group = gpu.group;
  const int rank = group.rank(), size = group.size();
  DeviceCollectives via = gpu.via();
  // Uneven: rank r has count + r elements.
  auto from = [&](int r) { return input(r, count + r); };
  const Array mine(gpu, from(rank)), part(gpu, count + rank);
  const std::vector<Array> gathered = arrays(gpu, [&](int r) { return Ints(count + r); });
  group.allgather(mine.bytes(), writable(gathered), kType, -1, via);
  const std::vector<Array> parts = arrays(gpu, from);
  group.reduce_scatter(readable(parts), part.bytes(), kType, ReduceOp::kSum, -1, via);
  for (int r = 0; r < size; ++r) CHECK(gathered[r].values() == from(r));
  Ints wanted = from(rank);
  for (std::int32_t& value : wanted) value *= size;
  CHECK(part.values() == wanted);

  // Rank r sends count + r + q elements to rank q.
  const std::vector<Array> outgoing = arrays(gpu, [&](int q) { return input(10 * rank + q, count + rank + q); });
  const std::vector<Array> incoming = arrays(gpu, [&](int q) { return Ints(count + rank + q); });
  group.alltoall(readable(outgoing), writable(incoming), kType, -1, via);
  for (int q = 0; q < size; ++q) CHECK(incoming[q].values() == input(10 * q + rank, count + rank + q));

  for (int root : {0, size - 1}) {
    const Array own(gpu, input(rank, count)), received(gpu, count);
    const std::vector<Array> all = arrays(gpu, [&](int) { return Ints(count); });
    group.gather(own.bytes(), rank == root ? writable(all) : std::vector<Bytes>{}, kType, root, -1, via);
    const std::vector<Array> given = arrays(gpu, [&](int r) { return input(r, count); });
    group.scatter(rank == root ? readable(given) : std::vector<ConstBytes>{}, received.bytes(), kType, root, -1, via);
    for (int r = 0; rank == root && r < size; ++r) CHECK(all[r].values() == input(r, count));
    CHECK(received.values() == own.values());
  }
}

void messages_on_device(const Gpu& gpu, std::size_t count) {
  Group& group = gpu.group;
  const int rank = group.rank(), size = group.size();
  if (size == 1) return;
  const auto stream = reinterpret_cast<std::uintptr_t>(gpu.stream());
  const Array out(gpu, input(rank, count)), in(gpu, count);
  // Even ranks send first, and the last of an odd number too: its neighbour receives first.
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  auto send = [&] { send_from_device(group, kDevice, stream, out.bytes(), next, 3, -1); };
  auto receive = [&] { CHECK(receive_to_device(group, kDevice, stream, in.bytes(), -1, 3, -1) == previous); };
  if (rank % 2 == 0) send();
  receive();
  if (rank % 2 == 1) send();
  CHECK(in.values() == input(previous, count));
}

void everything_on_device(const Gpu& gpu) {
  for (std::size_t count : kDeviceCounts) {
    one_block_on_device(gpu, count);
    messages_on_device(gpu, count);
    if (count < 100'000) many_blocks_on_device(gpu, count);
  }
  // Each says that it has read the others' memory before it leaves the group.
  CHECK(await_readers(std::chrono::seconds(10)));
}

std::size_t bytes_over_links(const Gpu& gpu, const std::function<void(DeviceCollectives&)>& work) {
  DeviceCollectives via = gpu.via();
  gpu.synchronize();
  const std::size_t before = cudasim::bytes_from_other_gpus();
  work(via);
  gpu.synchronize();
  Ints bytes_here{static_cast<std::int32_t>(cudasim::bytes_from_other_gpus() - before)};
  gpu.group.allreduce(bytes(bytes_here), bytes(bytes_here), kType, ReduceOp::kSum);
  return bytes_here[0];
}
