// The module sim_torch: torch tensors on the simulated device, for a torch without CUDA. The device is torch's
// "privateuseone"; its guard, allocator and the few operations that the backend uses are on streams of cudasim, so that
// nothing but the backend's own ordering keeps it from reading too early, writing too late, or losing memory.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <cstring>
#include <future>

#include "base/birthplace.hpp"
#include "bind/capsule.hpp"
#include "cudasim.hpp"
#include "device/cuda.hpp"
#include "gpu/device_collectives.hpp"

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kStreams = 6;  // 0 is the default one; those from kPool on are handed out
constexpr int kPool = 3;
thread_local c10::StreamId t_current = 0;

cudaStream_t native(c10::StreamId id) {
  static auto* const streams = [] {
    auto* made = new std::vector<accdp::Stream>(kStreams);  // as long as the process
    for (int i = 1; i < kStreams; ++i) (*made)[i] = accdp::make_stream();
    return made;
  }();
  return (*streams)[id].get();
}
void check(cudaError_t code) {
  TORCH_CHECK(code == cudaSuccess, "simulated device: ", cudaGetErrorName(code), " ", static_cast<int>(code));
}
c10::Stream stream_of(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, 0), id); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kType, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream_of(t_current); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream_of(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    static std::atomic<int> next{0};
    return stream_of(kPool + next++ % (kStreams - kPool));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(std::exchange(t_current, stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return native(stream.id()); }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    auto** made = reinterpret_cast<cudaEvent_t*>(event);
    if (!*made) check(cudaEventCreateWithFlags(made, cudaEventDisableTiming));
    check(cudaEventRecord(*made, native(stream.id())));
  }
  void block(void* event, const c10::Stream& stream) const override {
    check(cudaStreamWaitEvent(native(stream.id()), static_cast<cudaEvent_t>(event), 0));
  }
  bool queryEvent(void* event) const override {  // raises as torch's own does
    const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (code != cudaErrorNotReady) check(code);
    return code == cudaSuccess;
  }
  void synchronizeEvent(void* event) const override { check(cudaEventSynchronize(static_cast<cudaEvent_t>(event))); }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {  // its end would wait for all streams
    if (loaded_.is_elsewhere()) std::terminate();  // as c10's of CUDA, which makes a device current
  }

 private:
  const accdp::Birthplace loaded_;
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

/// Freed memory is overwritten in the order of the stream that it was taken on, as the next owner there might.
struct Freed {
  void* memory;
  std::size_t bytes;
  c10::StreamId stream;
};
void free_later(void* context) {
  const std::unique_ptr<Freed> it(static_cast<Freed*>(context));
  if (it->memory)
    check(
        cudasim::enqueue("free", native(it->stream), [freed = *it] { std::memset(freed.memory, 0xee, freed.bytes); }));
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = nullptr;
    if (bytes) check(cudaMalloc(&memory, bytes));
    return {memory, new Freed{memory, bytes, t_current}, &free_later, c10::Device(kType, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_later; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Allocator g_allocator;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &g_allocator, kKeys, type.value_or(at::kFloat), format);
}
at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &g_allocator, kKeys, type.value_or(at::kFloat));
}
/// The tensor's memory as a host tensor, which keeps nothing alive.
at::Tensor seen_by_host(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.scalar_type()));
}
at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool) {
  auto work = [to = seen_by_host(to), from = seen_by_host(from)] { at::Tensor(to).copy_(from); };
  check(cudasim::enqueue("copy", native(t_current), std::move(work)));
  if (to.is_cpu() || from.is_cpu()) check(cudaStreamSynchronize(native(t_current)));
  return to;
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("copy_", copy_);
}

std::promise<void> g_gate;

}  // namespace

PYBIND11_MODULE(sim_torch, m) {
  namespace py = pybind11;
  const py::call_guard<py::gil_scoped_release> nogil;
  m.doc() = "torch tensors on the simulated device.";
  m.def("device_path", [](const py::capsule& group) {
    namespace bind = accdp::bind;
    return bind::make_capsule<accdp::DeviceRoute>(
        std::make_shared<accdp::DevicePath>(bind::from_capsule<accdp::Group>(group, bind::kGroupCapsule)),
        bind::kDeviceRouteCapsule);
  });
  m.def("to_device", [](const at::Tensor& x) { return at::empty(x.sizes(), x.options().device(kType, 0)).copy_(x); });
  m.def("to_host", [](const at::Tensor& x) { return at::empty(x.sizes(), x.options().device(at::kCPU)).copy_(x); });
  m.def("set_stream", [](c10::StreamId id) { t_current = id; });
  m.def("synchronize", [] { check(cudaStreamSynchronize(native(t_current))); }, nogil);
  m.def("hold_stream", [] {
    g_gate = {};
    check(cudasim::enqueue("hold", native(t_current), [gate = g_gate.get_future().share()] { gate.wait(); }));
  });
  m.def("release_stream", [] { g_gate.set_value(); });
  m.def("set_capturing", &cudasim::set_capturing);
  m.def("set_capturing_elsewhere", &cudasim::set_capturing_elsewhere);
  m.def("set_jitter", [](int most_us) { cudasim::set_jitter(most_us); });
  m.def(
      "fail", [](const std::string& call, int nth) { cudasim::fail(call.c_str(), cudaErrorLaunchFailure, nth); },
      py::arg("call"), py::arg("nth") = 1);
  m.def("calls", [](const std::string& call) { return cudasim::calls(call.c_str()); });
}
