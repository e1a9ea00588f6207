#include "group_checks.hpp"

#include <functional>
#include <numeric>

Bytes bytes(Ints& data) { return std::as_writable_bytes(std::span(data)); }

Ints input(int rank, std::size_t count) {
  Ints data(count);
  std::iota(data.begin(), data.end(), 1000 * (rank + 1));
  return data;
}

Ints sum_of_inputs(int size, std::size_t count) {
  Ints sum(count);
  for (int rank = 0; rank < size; ++rank) {
    const Ints one = input(rank, count);
    std::transform(sum.begin(), sum.end(), one.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

void one_block(Group& group, std::size_t count) {
  for (int root = 0; root < group.size(); ++root) {
    Ints data = group.rank() == root ? input(root, count) : Ints(count);
    group.bcast(bytes(data), kType, root);
    CHECK(data == input(root, count));
    Ints mine = input(group.rank(), count), result(count);
    group.reduce(bytes(mine), bytes(result), kType, ReduceOp::kSum, root);
    if (group.rank() == root) CHECK(result == sum_of_inputs(group.size(), count));
    CHECK(mine == input(group.rank(), count));
  }
  Ints mine = input(group.rank(), count), result(count);
  group.allreduce(bytes(mine), bytes(result), kType, ReduceOp::kSum);
  CHECK(result == sum_of_inputs(group.size(), count));
  group.allreduce(bytes(mine), bytes(mine), kType, ReduceOp::kSum);
  CHECK(mine == result);
}

void many_blocks(Group& group, std::size_t count) {
  const int size = group.size(), rank = group.rank();
  auto blocks = [&](auto make) {
    std::vector<Ints> made;
    for (int r = 0; r < size; ++r) made.push_back(make(r));
    return made;
  };
  auto spans = [](std::vector<Ints>& data) {
    std::vector<Bytes> result;
    for (Ints& block : data) result.push_back(bytes(block));
    return result;
  };
  auto readable = [&](std::vector<Ints>& data) {
    const std::vector<Bytes> all = spans(data);
    return std::vector<ConstBytes>(all.begin(), all.end());
  };
  // Uneven: rank r has count + r elements.
  auto from = [&](int r) { return input(r, count + r); };
  Ints mine = from(rank);
  std::vector<Ints> gathered = blocks([&](int r) { return Ints(count + r); });
  group.allgather(bytes(mine), spans(gathered), kType);
  CHECK(gathered == blocks(from));

  std::vector<Ints> parts = blocks(from);
  Ints part(count + rank);
  group.reduce_scatter(readable(parts), bytes(part), kType, ReduceOp::kSum);
  Ints wanted = from(rank);
  for (std::int32_t& value : wanted) value *= size;
  CHECK(part == wanted);

  // Rank r sends count + r + q elements to rank q.
  std::vector<Ints> outgoing = blocks([&](int q) { return input(10 * rank + q, count + rank + q); });
  std::vector<Ints> incoming = blocks([&](int q) { return Ints(count + rank + q); });
  group.alltoall(readable(outgoing), spans(incoming), kType);
  CHECK(incoming == blocks([&](int q) { return input(10 * q + rank, count + rank + q); }));

  for (int root = 0; root < size; ++root) {
    Ints own = input(rank, count), received(count);
    std::vector<Ints> all = blocks([&](int) { return Ints(count); });
    group.gather(bytes(own), rank == root ? spans(all) : std::vector<Bytes>{}, kType, root);
    if (rank == root) CHECK(all == blocks([&](int r) { return input(r, count); }));
    std::vector<Ints> given = blocks([&](int r) { return input(r, count); });
    group.scatter(rank == root ? readable(given) : std::vector<ConstBytes>{}, bytes(received), kType, root);
    CHECK(received == own);
  }
}

void messages(Group& group, std::size_t count) {
  const int size = group.size(), next = (group.rank() + 1) % size, previous = (group.rank() + size - 1) % size;
  Ints out = input(group.rank(), count), back = input(group.rank() + 50, count), in(count), any(count);
  // Posted in the other order than they are sent, and to itself where the group is one rank.
  MessageHandle second = group.receive(bytes(in), previous, 2);
  MessageHandle first = group.receive(bytes(any), -1, 1);
  MessageHandle sent_first = group.send(bytes(out), next, 1), sent_second = group.send(bytes(back), next, 2);
  for (const MessageHandle& message : {second, first, sent_first, sent_second}) group.post_office().wait(message);
  CHECK(first->peer == previous);
  CHECK(any == input(previous, count) && in == input(previous + 50, count));
}

void everything(Group& group) {
  for (std::size_t count : kCounts) {
    one_block(group, count);
    many_blocks(group, count);
    messages(group, count);
    group.barrier();
  }
  group.monitored_barrier(true);
}

void change_sizes(const char* chunk, const char* flat, const char* ring, const char* eager) {
  set_setting("ACCDP_FLAT_BYTES", "0");
  set_setting("ACCDP_EAGER_BYTES", "0");
  set_setting("ACCDP_CHUNK_BYTES", chunk);
  set_setting("ACCDP_FLAT_BYTES", flat);
  set_setting("ACCDP_RING_BYTES", ring);
  set_setting("ACCDP_EAGER_BYTES", eager);
}
