// codec="auto" for tensors on a device: it counts with the device's speeds where the device encodes or decodes, with
// the host's where the host does. Speeds are made up in the files that processes keep them in.
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/settings.hpp"
#include "codec/speed_table.hpp"
#include "codec_data.hpp"
#include "coll/stream_choice.hpp"
#include "coll/stream_codec.hpp"
#include "device_checks.hpp"

namespace {

namespace fs = std::filesystem;

const CodecRow& kCodec = codec_named("fpk");
constexpr Datatype kFloat = Datatype::kF32;
const std::string kHost = SpeedTable::file_of(host_processor());
const std::string kGpu = SpeedTable::file_of("simulated beside " + host_processor());

/// Bytes per second.
struct Speed {
  double encode, decode;
};

/// A tensor that is on a device, and the memory of the host that stands for it.
class DeviceTensor {
 public:
  explicit DeviceTensor(Buffer values)
      : stream_(make_stream()),
        values_(std::move(values)),
        memory_(values_.size()),
        group_("test", 0, {{"host", getpid(), 0, 0}}, -1, 30, nullptr),
        path_(device_path(group_)) {
    copy_async(memory_.data(), values_.data(), values_.size(), stream_.get());
    const auto stream = reinterpret_cast<std::uintptr_t>(stream_.get());
    path_->admit(kDevice, stream);
    copies_ = path_->fetch(kDevice, stream, {{{memory_.data(), memory_.bytes()}, false, false, true}});
  }
  Bytes bytes() const { return copies_->blocks()[0]; }
  DeviceTensors& on_device() const { return copies_->on_device(); }

 private:
  Stream stream_;
  Buffer values_;
  DeviceBuffer memory_;
  Group group_;
  std::shared_ptr<DevicePath> path_;
  std::unique_ptr<HostCopies> copies_;
};

Buffer weights(std::size_t bytes) { return make(Kind::kBell, kFloat, bytes / sizeof(float), 3); }

/// Runs in a process of its own, which knows no speeds yet.
void in_process(const std::function<void()>& body) {
  CHECK(fork_ranks(1, [&](int) { body(); }));
}

fs::path file(const std::string& name) { return fs::path(cache_directory()) / name; }

/// As if that had been measured, for chunks, or runs of 16 of them, in proportion to their bytes.
void make_up(const std::string& name, Speed speed, int chunks) {
  std::ifstream before(file(name));
  std::string processor;
  CHECK(std::getline(before, processor));
  std::ofstream now(file(name));
  now << processor << "\n" << kCodec.name << "." << int{kCodec.format} << " " << name_of(kFloat);
  for (const double bytes_per_s : {speed.encode, speed.decode})
    for (std::size_t i = 0; i < CodecTimes::kSizes; ++i)
      now << " " << static_cast<double>(chunks * CodecTimes::bytes_at(i)) / bytes_per_s;
  now << "\nend\n";
}
void make_up(Speed host, Speed device) {
  make_up(kHost, host, 1);
  make_up(kGpu, device, DeviceTensors::kRunBytes / CodecTimes::kMost);
}

/// Where a stream is encoded and decoded.
struct Places {
  bool encodes_on_device, decodes_on_device;
};

/// What is chosen for a tensor; on_device: null where it is in the host.
const CodecRow* choice(Bytes data, DeviceTensors* on_device, Places places, double link_bytes_per_s,
                       Experiences& known) {
  StreamOptions options = stream_options("auto", Settings().codec_chunk_bytes, "");
  options.on_device = on_device;
  options.encodes_on_device = places.encodes_on_device;
  options.decodes_on_device = places.decodes_on_device;
  const std::vector<Piece> pieces{{data, kFloat}};
  const StreamPlan plan(pieces, options.chunk_bytes);
  StreamChooser chooser(pieces, plan, options);
  const Journey journey{
      static_cast<double>(data.size()), static_cast<double>(plan.chunk_bytes()), 1, link_bytes_per_s, 50e-6, 0.01e-9};
  return chooser.choose(0, journey, &known).at(class_of(pieces[0]));
}

/// Chooses for a tensor on the device, or for one in the host.
using Choose = std::function<const CodecRow*(bool is_on_device, Places)>;

void with_speeds(Speed host, Speed device, double link_bytes_per_s, const std::function<void(const Choose&)>& test) {
  constexpr std::size_t kBytes = 32 << 20;
  make_up(host, device);
  in_process([&] {
    const DeviceTensor tensor(weights(kBytes));
    Buffer on_host = weights(kBytes);
    Experiences known;
    const Choose choose = [&](bool is_on_device, Places places) {
      return choice(is_on_device ? tensor.bytes() : Bytes(on_host), is_on_device ? &tensor.on_device() : nullptr,
                    places, link_bytes_per_s, known);
    };
    // Twice: what is known from the first time must not change it, nor what was chosen for others meanwhile.
    for (int turn = 0; turn < 2; ++turn) test(choose);
  });
}

void choices() {
  // Too fast a link for any processor, whatever samples say of it.
  with_speeds({0.3e9, 0.3e9}, {50e9, 50e9}, 4e9, [](const Choose& choose) {
    CHECK(choose(true, {true, true}) == &kCodec);
    CHECK(choose(false, {true, true}) == nullptr);
    // Those that decode, or the root itself, do it in the host.
    CHECK(choose(true, {true, false}) == nullptr);
    CHECK(choose(true, {false, true}) == nullptr);
    CHECK(choose(true, {false, false}) == nullptr);
  });
  with_speeds({50e9, 50e9}, {20e6, 20e6}, 0.1e9, [](const Choose& choose) {
    CHECK(choose(true, {true, true}) == nullptr);
    CHECK(choose(false, {true, true}) == &kCodec);
    CHECK(choose(true, {true, false}) == nullptr);
    CHECK(choose(true, {false, true}) == nullptr);
    CHECK(choose(true, {false, false}) == &kCodec);
  });
}

/// A device whose every call takes long is found to be slow; the host's speeds are the host's.
void measured() {
  set_setting("ACCDP_CACHE_DIR", "-");
  in_process([] {
    const DeviceTensor tensor(weights(1 << 20));
    cudasim::set_jitter(20'000);
    const CodecCost device = tensor.on_device().speed(kCodec, kFloat), host = codec_speed(kCodec, kFloat);
    CHECK(device.encode_bytes_per_s < 0.5e9 && device.decode_bytes_per_s < 0.5e9);
    CHECK(device.encode_call_s > 1e-3 && host.encode_call_s < device.encode_call_s / 3);
    cudasim::set_jitter(0);
    const int launched = cudasim::calls("cudaLaunchKernelExC");
    CHECK(launched > 0);
    CHECK(tensor.on_device().speed(kCodec, kFloat).encode_bytes_per_s == device.encode_bytes_per_s);
    CHECK(cudasim::calls("cudaLaunchKernelExC") == launched);  // not measured again
  });
}

/// One stream from root 0 over two nodes, whose tensor is on a device there; what was chosen for it.
std::string sent(Group& group, bool receives_on_device) {
  const bool is_root = group.rank() == 0;
  std::optional<DeviceTensor> tensor;
  Buffer on_host(128 << 10);
  StreamOptions options = stream_options("auto", 16384, "chain");
  if (is_root || receives_on_device) {
    tensor.emplace(is_root ? weights(on_host.size()) : on_host);
    options.on_device = &tensor->on_device();
  }
  return group.bcast_stream({{tensor ? tensor->bytes() : Bytes(on_host), kFloat}}, 0, options).codec;
}

}  // namespace

int main() {
  const std::string folder = (fs::temp_directory_path() / ("accdp-test-auto-" + std::to_string(getpid()))).string();
  set_setting("ACCDP_CACHE_DIR", folder);
  set_setting("ACCDP_CODECS_OFF", "bitcomp,lz4,zhuff,zstd");
  in_process([] {  // makes the files
    const DeviceTensor tensor(weights(1 << 20));
    tensor.on_device().speed(kCodec, kFloat);
    codec_speed(kCodec, kFloat);
  });
  choices();
  // A device that encodes fast and decodes slowly: a root learns from the first stream that others decode in the host.
  make_up({50e9, 50e9}, {50e9, 20e6});
  in_process([] {
    for (const bool receives_on_device : {true, false})
      run_nodes({0, 1}, [&](Group& group) {
        for (const bool is_first : {true, false})
          CHECK(sent(group, receives_on_device) == (is_first || receives_on_device ? "none" : "fpk"));
      });
  });
  fs::remove_all(folder);
  measured();
}
