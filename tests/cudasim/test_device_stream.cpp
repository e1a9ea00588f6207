// Compressed broadcasts of tensors in device memory: encoded and decoded there where the codec is fpk, qpk, ans, lz4 or
// bitcomp, in groups whose other ranks may hold theirs in host memory.
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <thread>

#include "batched_nvcomp.hpp"
#include "codec_data.hpp"
#include "device_checks.hpp"
#include "gpu/host_copies.hpp"
#include "process_wire.hpp"

/// One tensor of a rank, on the device or not.
struct Tensor {
  Datatype type;
  Buffer values;
  bool is_on_device;
  Buffer reference = {};
  bool is_own_reference = false;  // receivers: the tensor itself is what they hold
};

/// A broadcast as the bindings make it: tensors on the device by host memory that stands for them. Tensors are written
/// by a stream, and read by it without anything but the call's own order.
StreamReport bcast(const Gpu& gpu, std::vector<Tensor>& tensors, int root, StreamOptions options) {
  const bool is_root = gpu.group.rank() == root;
  std::vector<DeviceBuffer> memory;
  std::vector<DeviceBlock> blocks, blocks_of_references;
  for (Tensor& tensor : tensors) {
    if (!tensor.is_on_device) continue;
    memory.emplace_back(tensor.values.size() + 1);
    const Bytes data(memory.back().data(), tensor.values.size());
    copy_async(data.data(), tensor.values.data(), data.size(), gpu.stream());
    const bool is_read = is_root, is_written = !is_root || options.root_takes_decoded;
    blocks.push_back({data, false, is_written, is_read});
  }
  for (const Tensor& tensor : tensors) {
    if (!tensor.is_on_device || tensor.reference.empty()) continue;
    Bytes data = blocks[blocks_of_references.size()].data;
    if (!tensor.is_own_reference) {
      memory.emplace_back(tensor.reference.size());
      data = {memory.back().data(), tensor.reference.size()};
      copy_async(data.data(), tensor.reference.data(), data.size(), gpu.stream());
    }
    blocks_of_references.push_back({data, false, false, true});
  }
  const std::size_t own_blocks = blocks.size();
  blocks.insert(blocks.end(), blocks_of_references.begin(), blocks_of_references.end());
  std::unique_ptr<HostCopies> copies;
  if (!blocks.empty()) {
    const auto stream = reinterpret_cast<std::uintptr_t>(gpu.stream());
    gpu.path->admit(kDevice, stream);
    copies = gpu.path->fetch(kDevice, stream, blocks);
    options.on_device = &copies->on_device();
  }
  std::vector<Piece> pieces;
  std::size_t on_device = 0, reference = own_blocks;
  for (Tensor& tensor : tensors) {
    pieces.push_back({tensor.is_on_device ? copies->blocks()[on_device++] : Bytes(tensor.values), tensor.type});
    if (!tensor.reference.empty())
      pieces.back().reference = tensor.is_on_device ? ConstBytes(copies->blocks()[reference++]) : tensor.reference;
  }
  const auto read_back = [&] {
    on_device = 0;
    for (Tensor& tensor : tensors)
      if (tensor.is_on_device)
        copy_async(tensor.values.data(), memory[on_device++].data(), tensor.values.size(), gpu.stream());
    gpu.synchronize();
  };
  try {
    const StreamReport report = gpu.group.bcast_stream(std::move(pieces), root, options);
    if (copies) copies->deliver();
    read_back();
    return report;
  } catch (...) {
    read_back();
    throw;
  }
}

std::set<std::string> g_nvcomp;  // codecs, where nvCOMP is installed

constexpr Datatype kFloats[] = {Datatype::kF32, Datatype::kBF16, Datatype::kF16};

/// Sizes around chunks and runs of them, tensors that share a chunk, and one that no codec takes.
std::vector<Tensor> tensors_of(std::size_t count, bool is_on_device, bool is_filled) {
  std::vector<Tensor> tensors;
  for (Datatype type : kFloats) tensors.push_back({type, make(Kind::kWide, type, count, 9), is_on_device});
  tensors.push_back({Datatype::kF32, make(Kind::kBits, Datatype::kF32, count / 3, 4), is_on_device});
  tensors.push_back({Datatype::kF32, make(Kind::kSparse, Datatype::kF32, count, 5), is_on_device});
  tensors.push_back({Datatype::kI64, make(Kind::kBits, Datatype::kF32, 2 * (count / 5), 6), is_on_device});
  if (!is_filled)
    for (Tensor& tensor : tensors) std::fill(tensor.values.begin(), tensor.values.end(), std::byte{7});
  return tensors;
}

bool is_on_device(int rank, int which) { return which == 0 || (which == 1 ? rank % 2 == 0 : rank % 2 == 1); }

/// Whether this rank encodes or decodes, and what with where the codec asked for is only on devices.
bool is_coded_at(const Topology& t, int rank, int root) {
  return t.nodes() == 1 || t.leader(t.node_of(rank), root) == rank;
}
std::string codec_used(const Topology& t, const std::string& asked, int root, int which) {
  if (asked != "ans") return asked;
  for (int rank = 0; rank < t.size(); ++rank)
    if (is_coded_at(t, rank, root) && !is_on_device(rank, which)) return "fpk";
  return "ans";
}

void exact(const Gpu& gpu, const char* codec, const char* algorithm, int which, std::size_t chunk) {
  const StreamOptions options = stream_options(codec, chunk, algorithm);
  const Group& group = gpu.group;
  for (int root : {0, group.size() - 1})
    for (std::size_t count : {std::size_t{0}, std::size_t{700}, std::size_t{30'000}}) {
      const bool on_device = is_on_device(group.rank(), which);
      std::vector<Tensor> mine = tensors_of(count, on_device, group.rank() == root);
      const StreamReport report = bcast(gpu, mine, root, options);
      const std::vector<Tensor> wanted = tensors_of(count, on_device, true);
      for (std::size_t i = 0; i < mine.size(); ++i) CHECK(mine[i].values == wanted[i].values);
      const Topology& t = group.topology();
      const bool by_message = std::string(algorithm) == "p2p_compressed";
      if (count == 30'000 && std::string(codec) == "ans" && is_coded_at(t, group.rank(), root))
        CHECK(report.codec == (by_message ? "fpk" : codec_used(t, codec, root, which)));
      const bool decodes = t.nodes() == 1 ? group.size() > 1 : t.nodes() == group.size();
      const bool is_for_devices = std::string(codec) == "fpk" || g_nvcomp.contains(codec);
      if (count == 30'000 && is_for_devices && !by_message && (decodes || (group.rank() == root && t.nodes() > 1)))
        CHECK(report.codec_place == (on_device ? "device" : "host"));
    }
}

/// All ranks but a root that keeps its own end with the same bits, within the bound.
void bounded(const Gpu& gpu, int which, bool root_takes_decoded, bool relative) {
  Group& group = gpu.group;
  StreamOptions options = stream_options("qpk", 16384, "chain");
  options.root_takes_decoded = root_takes_decoded;
  options.bound = {relative ? 0.05 : 0.01, relative};
  const std::size_t count = 40'000;
  for (Datatype type : kFloats) {
    const Buffer wanted = make(Kind::kBell, type, count, 3);
    const bool is_root = group.rank() == 0;
    std::vector<Tensor> mine{{type, is_root ? wanted : Buffer(wanted.size()), is_on_device(group.rank(), which)}};
    const StreamReport report = bcast(gpu, mine, 0, options);
    if (group.topology().is_leader()) CHECK(report.codec == "qpk");  // others get what those decode
    const bool is_exact = is_root && !root_takes_decoded;
    CHECK((mine[0].values == wanted) == is_exact || group.size() == 1);
    Buffer theirs = mine[0].values;
    group.bcast(theirs, type, group.size() - 1);
    if (!is_exact) CHECK(theirs == mine[0].values);
    if (type != Datatype::kF32) continue;
    for (std::size_t i = 0; i < count; ++i) {
      float a, b;
      std::memcpy(&a, wanted.data() + 4 * i, 4);
      std::memcpy(&b, mine[0].values.data() + 4 * i, 4);
      CHECK(std::abs(a - b) <= (relative ? 0.05 * 0.03125 * 1.05 : 0.01));
    }
  }
}

/// What changed a little since the version that all have: tensors of all widths, small ones that share a chunk, on
/// receivers the memory that is written.
void differences(const Gpu& gpu, const char* codec, int which, std::size_t chunk) {
  const Group& group = gpu.group;
  const StreamOptions options = stream_options(codec, chunk, "chain");
  const bool on_device = is_on_device(group.rank(), which), is_root = group.rank() == 0;
  const Datatype types[] = {Datatype::kF32, Datatype::kBF16, Datatype::kF16, Datatype::kF32, Datatype::kF32,
                            Datatype::kI64, Datatype::kU8,   Datatype::kC64, Datatype::kF64};
  const std::size_t counts[] = {30'000, 30'001, 20'000, 300, 77, 5000, 999, 4000, 3000};
  std::vector<Tensor> mine;
  std::vector<Buffer> wanted;
  for (std::size_t i = 0; i < std::size(counts); ++i) {
    const std::size_t bytes = counts[i] * element_bytes(types[i]);
    const Buffer old = make(i == 3 ? Kind::kBits : Kind::kBell, Datatype::kF32, bytes / 4 + 1, i + 1);
    Buffer before(old.begin(), old.begin() + bytes), now = before;
    Random random{i + 7};
    for (std::size_t at = 0; at < bytes; at += 1 + random.below(i == 4 ? 2 : 200))
      now[at] ^= static_cast<std::byte>(1 << random.below(i == 4 ? 8 : 3));
    wanted.push_back(now);
    mine.push_back({types[i], is_root ? now : before, on_device, before, !is_root && i % 2 == 0});
  }
  const StreamReport report = bcast(gpu, mine, 0, options);
  for (std::size_t i = 0; i < mine.size(); ++i) CHECK(mine[i].values == wanted[i]);
  const bool decodes = group.topology().nodes() == 1 ? group.size() > 1 : group.topology().nodes() == group.size();
  if (std::string(codec) == "fpk" && (decodes || (is_root && group.topology().nodes() > 1)))
    CHECK(report.codec_place == (on_device ? "device" : "host"));
}

/// The same bytes on the wire whoever makes the differences.
void same_wire(const Gpu& gpu) {
  std::uint64_t bytes[2];
  for (const bool on_device : {false, true}) {
    Buffer before = make(Kind::kBell, Datatype::kF32, 50'000, 3), now = before;
    for (std::size_t at = 0; at < now.size(); at += 97) now[at] ^= std::byte{3};
    std::vector<Tensor> mine{{Datatype::kF32, gpu.group.rank() == 0 ? now : before, on_device, before}};
    bytes[on_device] = bcast(gpu, mine, 0, stream_options("fpk", 16384, "chain")).wire_bytes;
    CHECK(mine[0].values == now);
  }
  CHECK(bytes[0] == bytes[1]);
}

/// A rank that holds another version is found before anything is overwritten.
void wrong_reference(Group& group) {
  Gpu gpu(group);
  const Buffer old = make(Kind::kBell, Datatype::kF32, 50'000, 3), now = make(Kind::kBell, Datatype::kF32, 50'000, 4);
  std::vector<Tensor> mine{{Datatype::kF32, group.rank() == 0 ? now : old, true, old, group.rank() != 0}};
  if (group.rank() == 1) mine[0].values[100'000] ^= std::byte{1};
  const Buffer before = mine[0].values;
  CHECK_THROWS(bcast(gpu, mine, 0, stream_options("fpk", 16384, "chain")), MismatchError,
               "against a reference with checksum");
  gpu.synchronize();
  CHECK(mine[0].values == before);
}

/// A leader whose device cannot read what it got, here ANS of another nvCOMP, says so before its mate has any of it.
void undecodable(Group& group) {
  Gpu gpu(group);
  if (group.rank() == 2) setenv("CUDASIM_ANS_VERSION", "2", 1);
  // So little that its ranks are done with it as soon as they have it.
  const Buffer sparse = make(Kind::kSparse, Datatype::kF32, 10'000, 3);
  std::vector<Tensor> mine{{Datatype::kF32, group.rank() == 0 ? sparse : Buffer(sparse.size()), true}};
  const Buffer before = mine[0].values;
  const auto call = [&] { bcast(gpu, mine, 0, stream_options("ans", 16384, "chain")); };
  if (group.topology().node() == 0) {
    try {
      call();  // it may be done when the others find out
    } catch (const Error&) {
    }
    return;
  }
  CHECK_THROWS(call(), Error, "a chunk that was decoded on the device is damaged");
  if (group.rank() == 3) CHECK(mine[0].values == before);
}

void everything_encoded(Group& group) {
  cudasim::set_jitter(5, 4);
  Gpu gpu(group);
  for (int which : {0, 1, 2}) {
    for (const char* algorithm : {"chain", "binomial", "scatter_allgather", "p2p_compressed"})
      exact(gpu, "fpk", algorithm, which, 8192);
    exact(gpu, "fpk", "chain", which, 256 << 10);
    for (const char* codec : {"auto", "none"}) exact(gpu, codec, "chain", which, 16384);
    for (const std::string& codec : g_nvcomp) exact(gpu, codec.c_str(), "chain", which, 16384);
    for (bool takes : {false, true}) bounded(gpu, which, takes, takes);
    for (const char* codec : {"fpk", "zhuff", "auto"}) differences(gpu, codec, which, 16384);
    if (g_nvcomp.contains("ans")) {
      exact(gpu, "ans", "p2p_compressed", which, 16384);
      differences(gpu, "ans", which, 16384);
    }
  }
  same_wire(gpu);
  CHECK(cudasim::late_loads() == 0);
}

/// A call of rank `failing` fails in the middle of a broadcast: all ranks hear of it, by name.
void failure(int failing, const std::function<void()>& inject, const char* text) {
  CHECK(run_ranks(2, [&](Group& group) {
    Gpu gpu(group);
    const StreamOptions options = stream_options("fpk", 8192, "");
    auto call = [&] {
      std::vector<Tensor> mine = tensors_of(30'000, true, group.rank() == 0);
      bcast(gpu, mine, 0, options);
    };
    fails_on_all(gpu, failing, inject, text, call);
  }));
}

/// A call on another thread, later. The stream that wrote the tensor is gone by then, and what reads it has no order
/// but that the call has ended.
void behind(Group& group) {
  const Gpu gpu(group);
  const bool is_root = group.rank() == 0;
  const Buffer wanted = make(Kind::kWide, Datatype::kF32, 30'000, 9);
  const Buffer before = is_root ? wanted : Buffer(wanted.size(), std::byte{7});
  for (const char* codec : {"fpk", "none"})
    for (int turn = 0; turn < 5; ++turn) {
      const DeviceBuffer memory(wanted.size());
      const Bytes data(memory.data(), wanted.size());
      std::unique_ptr<StreamMark> mark;
      {
        const Stream writer = make_stream();
        const auto handle = reinterpret_cast<std::uintptr_t>(writer.get());
        copy_async(data.data(), before.data(), data.size(), writer.get());
        gpu.path->admit(kDevice, handle);
        mark = std::make_unique<StreamMark>(kDevice, handle);
      }
      std::thread([&] {
        const std::unique_ptr<HostCopies> copies = gpu.path->fetch_behind(*mark, {{data, false, !is_root, is_root}});
        StreamOptions options = stream_options(codec, 0, "");
        options.on_device = &copies->on_device();
        group.bcast_stream({{copies->blocks()[0], Datatype::kF32}}, 0, options);
        copies->deliver();
      }).join();
      const Stream reader = make_stream();
      Buffer found(wanted.size());
      copy_async(found.data(), data.data(), data.size(), reader.get());
      synchronize(reader.get());
      CHECK(found == wanted);
    }
}

int main() {
  if (has_batched_nvcomp()) g_nvcomp = {"lz4", "bitcomp", "ans"};
  for (int size : {1, 2, 3}) CHECK(run_ranks(size, everything_encoded));
  run_nodes({0, 1, 2}, everything_encoded);
  run_nodes({0, 0, 1, 1}, everything_encoded);
  // Where the copies of tensors in the host are not pinned. With 0, what the calls before have left is freed, which the
  // processes that are forked next must not have.
  for (const char* limit : {"128k", "0"}) {
    set_setting("ACCDP_GPU_PINNED_BYTES", limit);
    run_nodes({0, 0, 1}, everything_encoded);
  }
  set_setting("ACCDP_GPU_PINNED_BYTES", "64M");
  CHECK(run_ranks(3, wrong_reference));
  CHECK(run_ranks(2, behind));
  if (!g_nvcomp.empty()) CHECK(run_processes_on_nodes({0, 0, 1, 1}, undecodable));
  for (int rank : {0, 1}) {
    failure(rank, [] { cudasim::fail("cudaLaunchKernelExC", cudaErrorLaunchFailure, 5); }, "cudaErrorLaunchFailure");
    // The first six allocations are the test's own.
    failure(rank, [] { cudasim::fail("cudaMalloc", cudaErrorMemoryAllocation, 8); }, "cudaErrorMemoryAllocation");
    failure(rank, [] { cudasim::fail("cudaEventSynchronize", cudaErrorLaunchFailure); }, "cudaEventSynchronize");
    failure(
        rank, [] { cudasim::fail("cudaStreamCreateWithFlags", cudaErrorMemoryAllocation); },
        "cudaStreamCreateWithFlags");
  }
}
