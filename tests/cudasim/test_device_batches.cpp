// More at a time than there is room for: batches of a workshop, messages in rank order. And bounds of each tensor.
#include <cstring>

#include "codec/cuda_codec.hpp"
#include "codec_data.hpp"
#include "gpu/codec_workshop.hpp"
#include "over_gpus.hpp"

namespace {
/// More at once than a batch of a workshop takes up: chunks as long as they can be, that did not become smaller.
void more_than_a_batch() {
  constexpr std::size_t kLong = 256 << 10, kChunks = 40;
  const Stream stream = make_stream();
  CodecWorkshop shop;
  const DeviceBuffer back(kChunks * kLong);
  const Buffer data = make(Kind::kBell, Datatype::kF32, kChunks * kLong / sizeof(float), 3);
  shop.begin_after(stream.get());
  for (std::size_t i = 0; i < kChunks; ++i)
    shop.decode(nullptr, Datatype::kF32, ConstBytes(data).subspan(i * kLong, kLong),
                {{{back.data() + i * kLong, nullptr, kLong}}, Datatype::kF32});
  shop.finish();
  CHECK(std::memcmp(back.data(), data.data(), data.size()) == 0);
}

/// Tensors of one call have bounds of their own.
void bounds_of_their_own() {
  constexpr std::size_t kCount = 16 << 10, kBytes = kCount * sizeof(float);
  const Stream stream = make_stream();
  CodecWorkshop shop;
  const DeviceBuffer in(2 * kBytes), out(2 * kBytes);
  const Buffer data = make(Kind::kBell, Datatype::kF32, 2 * kCount, 5);
  std::memcpy(in.data(), data.data(), data.size());
  const CodecRow* qpk = &codec_named("qpk");
  for (const double first : {1e-4, 1e-1}) {
    const double bounds[] = {first, 1e-5 / first};
    const auto place = [&](const DeviceBuffer& memory, int i) {
      return CodecWorkshop::Place{{{memory.data() + i * kBytes, nullptr, kBytes}}, Datatype::kF32};
    };
    shop.begin_after(stream.get());
    std::vector<CodecWorkshop::Job> jobs;
    for (int i : {0, 1}) jobs.push_back({place(in, i), qpk, {Datatype::kF32, bounds[i]}});
    const std::size_t beginning = shop.begin_encode(jobs);
    const std::vector<ConstBytes> encoded = shop.encoded(beginning);
    for (int i : {0, 1}) shop.decode(qpk, Datatype::kF32, encoded[i], place(out, i));
    shop.end_encode(beginning);
    shop.finish();
    for (int i : {0, 1})
      for (std::size_t at = 0; at < kCount; ++at) {
        float x, y;
        std::memcpy(&x, in.data() + i * kBytes + at * 4, 4);
        std::memcpy(&y, out.data() + i * kBytes + at * 4, 4);
        CHECK(std::abs(x - y) <= bounds[i]);
      }
  }
}

/// In rank order, more than is taken at once.
void long_in_rank_order() {
  run(
      {0, 0, 0}, "2 GPUs apart", [](int rank) { gpu_of(rank == 2); },
      [](const Gpu& gpu) {
        Group& group = gpu.group;
        const std::size_t count = (17 << 20) + 5;
        cudasim::set_jitter(0);
        const Array data(gpu, input(group.rank(), 2 * (count / 2)));
        const Array sum(gpu, data.values().size());
        DeviceCollectives via = gpu.via();
        via.in_rank_order();
        group.allreduce(data.bytes(), sum.bytes(), kType, ReduceOp::kSum, -1, via);
        CHECK(sum.values() == sum_of_inputs(3, data.values().size()));
        CHECK(data.values() == input(group.rank(), data.values().size()));
        const std::size_t each = (6 << 20) + 5;
        const std::vector<Array> blocks = arrays(gpu, [&](int q) { return input(10 * group.rank() + q, each); });
        const Array mine(gpu, each);
        group.reduce_scatter(readable(blocks), mine.bytes(), kType, ReduceOp::kSum, -1, via);
        Ints wanted(each);
        for (int from : {0, 1, 2}) {
          const Ints part = input(10 * from + group.rank(), each);
          for (std::size_t i = 0; i < each; ++i) wanted[i] += part[i];
        }
        CHECK(mine.values() == wanted);
      });
}

}  // namespace

int main() {
  CHECK(fork_ranks(1, [](int) { more_than_a_batch(); }));
  CHECK(fork_ranks(1, [](int) { bounds_of_their_own(); }));
  set_setting("ACCDP_GPU_SLOT_BYTES", "4M");
  long_in_rank_order();
}
