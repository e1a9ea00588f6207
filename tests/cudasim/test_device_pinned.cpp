// Pinned host memory: how much of it there is, what is used again, and when. And what goes through pageable memory
// instead, where the sizes around the windows are those that matter.
#include <cstring>

#include "device_checks.hpp"
#include "gpu/host_room.hpp"
#include "gpu/pinned_pool.hpp"
#include "gpu/staging.hpp"

namespace {

constexpr std::size_t kLimit = 1 << 20, kWindow = kLimit / 2;
constexpr std::size_t kSizes[] = {0, 1, kWindow - 1, kWindow, kWindow + 1, 3 * kWindow + 5};

using Buffer = std::vector<std::byte>;

Buffer pattern(std::size_t bytes, unsigned seed) {
  Buffer data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>((i * 2654435761u >> 13) + seed);
  return data;
}

/// Memory of the device that is filled and read by a stream.
class Memory {
 public:
  Memory(cudaStream_t stream, Buffer values) : stream_(stream), host_(std::move(values)), device_(host_.size() + 1) {
    copy_async(device_.data(), host_.data(), host_.size(), stream_);
  }
  Bytes bytes() const { return {device_.data(), host_.size()}; }
  Buffer values() const {
    Buffer found(host_.size());
    copy_async(found.data(), device_.data(), found.size(), stream_);
    synchronize(stream_);
    return found;
  }

 private:
  cudaStream_t stream_;
  Buffer host_;
  DeviceBuffer device_;
};

/// A stream that goes no further until it is let.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    cudasim::call_in_stream(
        stream,
        [](void* gate) {
          while (!static_cast<Gate*>(gate)->is_open_) usleep(100);
        },
        this);
  }
  Gate(const Gate&) = delete;
  void open() { is_open_ = true; }

 private:
  std::atomic<bool> is_open_{false};
};

void message(const Gpu& gpu, std::size_t bytes, unsigned seed) {
  const auto stream = reinterpret_cast<std::uintptr_t>(gpu.stream());
  const Memory data(gpu.stream(), pattern(bytes, gpu.group.rank() == 0 ? seed : seed + 1));
  if (gpu.group.rank() == 0)
    send_from_device(gpu.group, kDevice, stream, data.bytes(), 1, 3, -1);
  else
    receive_to_device(gpu.group, kDevice, stream, data.bytes(), 0, 3, -1);
  CHECK(data.values() == pattern(bytes, seed));
}

void messages(const char* limit) {
  set_setting("ACCDP_GPU_PINNED_BYTES", limit);
  const std::size_t window = most_window_bytes();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, window - 1, window, window + 1, 3 * window + 5})
    CHECK(run_ranks(2, [&](Group& group) {
      cudasim::set_jitter(200);
      const Gpu gpu(group);
      message(gpu, bytes, 1);
      const int calls = cudasim::calls("cudaHostAlloc");
      CHECK(calls == (bytes > 0));
      CHECK(cudasim::pinned_bytes() == pinned_bytes() && cudasim::most_pinned_bytes() <= window);
      for (unsigned seed : {2, 3}) message(gpu, bytes, seed);
      CHECK(cudasim::calls("cudaHostAlloc") == calls);
    }));
}

/// Nobody waits for the copies to the device between messages: each has memory that no other still leaves.
void messages_in_a_row(const char* limit) {
  CHECK(run_ranks(2, [&](Group& group) {
    set_setting("ACCDP_GPU_PINNED_BYTES", limit);
    const Gpu gpu(group);
    const auto stream = reinterpret_cast<std::uintptr_t>(gpu.stream());
    for (const std::size_t bytes : {std::size_t{100'000}, 2 * kWindow + 3}) {
      std::vector<std::unique_ptr<Memory>> all;
      for (unsigned i = 0; i < 12; ++i)
        all.push_back(std::make_unique<Memory>(gpu.stream(), pattern(bytes, group.rank() == 0 ? i : 99)));
      gpu.synchronize();
      if (group.rank() == 1) cudasim::set_jitter(5000);
      for (const auto& one : all) {
        if (group.rank() == 0)
          send_from_device(group, kDevice, stream, one->bytes(), 1, 3, -1);
        else
          receive_to_device(group, kDevice, stream, one->bytes(), 0, 3, -1);
      }
      for (unsigned i = 0; i < all.size(); ++i) CHECK(all[i]->values() == pattern(bytes, i));
      cudasim::set_jitter(0);
    }
    CHECK(cudasim::most_pinned_bytes() <= static_cast<std::size_t>(settings().gpu_pinned_bytes));
  }));
}

/// Blocks of device memory with copies in the host, as compressed operations have them. All is read and written in the
/// host, or only parts of it.
void sets_of_blocks(const char* limit) {
  Group group("test", 0, {{"host", getpid(), 0, 0}}, -1, 30, nullptr);
  set_setting("ACCDP_GPU_PINNED_BYTES", limit);
  const Gpu gpu(group);
  const auto stream = reinterpret_cast<std::uintptr_t>(gpu.stream());
  gpu.path->admit(kDevice, stream);
  cudasim::set_jitter(100);
  const auto run = [&](bool is_later) {
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<DeviceBlock> blocks;
    for (const std::size_t bytes : kSizes) {
      memory.push_back(std::make_unique<Memory>(gpu.stream(), pattern(bytes, 5)));
      blocks.push_back({memory.back()->bytes(), !is_later, true, is_later});
    }
    const std::unique_ptr<HostCopies> copies = gpu.path->fetch(kDevice, stream, blocks);
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const Bytes copy = copies->blocks()[b];
      Buffer wanted = pattern(copy.size(), 5);
      if (is_later) {
        // Many short parts, as samples are, and all of it but a part in the middle.
        std::vector<ConstBytes> parts;
        for (std::size_t at = 0; at + 8 <= copy.size(); at += 50'021) parts.emplace_back(copy.subspan(at, 8));
        copies->on_device().fetch(parts);
        for (const ConstBytes& part : parts)
          CHECK(std::memcmp(part.data(), wanted.data() + (part.data() - copy.data()), part.size()) == 0);
        const std::size_t third = copy.size() / 3;
        copies->on_device().fetch({copy.first(third), copy.last(third)});
        CHECK(std::equal(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(third), copy.begin()));
        CHECK(std::equal(wanted.end() - static_cast<std::ptrdiff_t>(third), wanted.end(), copy.end() - third));
        std::memset(copy.data(), 7, third);
      } else {
        CHECK(std::equal(wanted.begin(), wanted.end(), copy.begin(), copy.end()));
        std::memset(copy.data(), 7, copy.size());
      }
    }
    copies->deliver();
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const std::size_t bytes = kSizes[b], changed = is_later ? bytes / 3 : bytes;
      Buffer wanted = pattern(bytes, 5);
      std::fill_n(wanted.begin(), changed, std::byte{7});
      CHECK(memory[b]->values() == wanted);
    }
  };
  run(false);
  const int calls = cudasim::calls("cudaHostAlloc");
  run(false);
  run(true);
  const std::size_t most = static_cast<std::size_t>(settings().gpu_pinned_bytes);
  const bool all_are_pinned = most > 8 * kLimit;
  CHECK(cudasim::calls("cudaHostAlloc") == calls && calls == (most > 0));
  CHECK(cudasim::most_pinned_bytes() <= (all_are_pinned ? most : most / 2));  // no more than a window
  CHECK(!all_are_pinned || cudasim::pinned_bytes() > 3 * kLimit);             // they were
}

/// Memory goes to the next user when the device has done with it, and is not freed before.
void used_until() {
  const Stream stream = make_stream();
  PinnedLease first = hold_pinned(kWindow);
  const std::byte* const address = first.data();
  CHECK(first && !hold_pinned(1));  // the rest is for windows
  auto gate = std::make_unique<Gate>(stream.get());
  {
    const PinnedLease::Use use(first, stream.get());
  }
  first = {};
  std::byte* other = nullptr;
  {
    PinnedLease second = hold_pinned(kWindow);
    other = second.data();
    CHECK(second && other != address);
    const PinnedLease::Use use(second, stream.get(), 1);  // of the second half, too
  }
  CHECK(!hold_pinned(kWindow) && !pinned_window(kWindow));
  set_setting("ACCDP_GPU_PINNED_BYTES", "0");
  CHECK(!hold_pinned(1) && cudasim::pinned_bytes() == kLimit);  // the device uses both
  set_setting("ACCDP_GPU_PINNED_BYTES", "1M");
  const int calls = cudasim::calls("cudaHostAlloc");
  std::thread opener([&] {
    usleep(2000);
    gate->open();
  });
  PinnedLease third;
  while (!third) third = hold_pinned(kWindow);
  CHECK(third.data() == address || third.data() == other);
  CHECK(cudasim::calls("cudaHostAlloc") == calls);
  opener.join();
  synchronize(stream.get());
  set_setting("ACCDP_GPU_PINNED_BYTES", "0");
  third = {};
  CHECK(cudasim::pinned_bytes() == 0 && pinned_bytes() == 0);
}

/// What is kept in other sizes makes room.
void other_sizes() {
  for (const std::size_t bytes : {1, 70'000, 300'000, 500'000, 200'000, 65'536}) {
    PinnedLease held = hold_pinned(bytes), window = pinned_window(kWindow);
    CHECK(held && held.span().size() >= bytes && window.span().size() >= kWindow);
    CHECK(cudasim::pinned_bytes() <= kLimit && pinned_bytes() == cudasim::pinned_bytes());
  }
  CHECK(!hold_pinned(kWindow + 1) && !hold_pinned(SIZE_MAX));
  CHECK(cudasim::most_pinned_bytes() <= kLimit);
}

/// All at once, each with patterns of its own that pass through the memory by its own stream.
void many_threads() {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      const Stream stream = make_stream();
      for (unsigned i = 0; i < 60; ++i) {
        const std::size_t bytes = kSizes[(t + i) % 5] / (1 + i % 3) + 1;
        const Memory from(stream.get(), pattern(bytes, i)), to(stream.get(), Buffer(bytes));
        HostRoom room(bytes);
        const Transfer down{room.data(), from.bytes().data(), bytes}, up{to.bytes().data(), room.data(), bytes};
        room.fetch({&down, 1}, stream.get());
        room.deliver({&up, 1}, stream.get());
        room = {};
        CHECK(to.values() == pattern(bytes, i));
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(cudasim::most_pinned_bytes() <= kLimit && cudasim::pinned_bytes() == pinned_bytes());
}

/// Staged collectives, whole and in chunks.
void collectives(Group& group) {
  {
    cudasim::set_jitter(20, 4);
    const Gpu gpu(group);
    everything_on_device(gpu);
    int calls = 0;
    for (int turn : {0, 1}) {
      const Array data(gpu, input(group.rank(), 300'001));
      DeviceCollectives via = gpu.via();
      group.allreduce(data.bytes(), data.bytes(), kType, ReduceOp::kSum, -1, via);
      CHECK(data.values() == sum_of_inputs(2, 300'001));
      CHECK(turn == 0 || cudasim::calls("cudaHostAlloc") == calls);
      calls = cudasim::calls("cudaHostAlloc");
    }
    CHECK(gpu.path->describe().find("staged") == 0);
    CHECK(cudasim::most_pinned_bytes() <= static_cast<std::size_t>(settings().gpu_pinned_bytes));
  }
  // What the group leaves.
  CHECK(cudasim::pinned_bytes() == pinned_bytes());
}

/// Where no more memory can be pinned all goes on, and what was not there does not count.
void out_of_memory() {
  CHECK(run_ranks(2, [](Group& group) {
    const Gpu gpu(group);
    if (group.rank() == 1) cudasim::fail("cudaHostAlloc", cudaErrorMemoryAllocation);
    message(gpu, kWindow, 1);
    CHECK(pinned_bytes() == kWindow && pinned_bytes() == cudasim::pinned_bytes());
    cudasim::fail_always("cudaHostAlloc", cudaErrorMemoryAllocation);
    for (const std::size_t bytes : kSizes) message(gpu, bytes, 2);
    CHECK(cudaGetLastError() == cudaSuccess);
  }));
}

void in_a_process(const std::function<void()>& body) {
  CHECK(fork_ranks(1, [&](int) { body(); }));
}

}  // namespace

int main() {
  for (const char* limit : {"64M", "1M"}) messages(limit);
  for (const char* limit : {"0", "128k", "1M", "64M"}) messages_in_a_row(limit);
  for (const char* limit : {"0", "256k", "1M", "64M"}) in_a_process([&] { sets_of_blocks(limit); });
  in_a_process(used_until);
  in_a_process(other_sizes);
  in_a_process(many_threads);
  out_of_memory();
  set_setting("ACCDP_GPU_PATH", "staged");
  set_setting("ACCDP_GPU_SLOT_BYTES", "128k");
  for (const char* limit : {"0", "200k", "1M", "64M"}) {
    set_setting("ACCDP_GPU_PINNED_BYTES", limit);
    CHECK(run_ranks(2, collectives));
  }
}
