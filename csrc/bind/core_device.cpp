// Calls on device memory. Builds without CUDA have only the report that says so.
#include "bind/core_device.hpp"

#include <pybind11/stl.h>

#include <chrono>

#include "base/no_gil.hpp"
#include "bind/capsule.hpp"
#include "coll/device_route.hpp"
#include "coll/device_tensors.hpp"
#include "device/cuda_report.hpp"
#ifdef ACCDP_WITH_CUDA
#include "gpu/await_readers.hpp"
#include "gpu/device_collectives.hpp"
#include "gpu/device_messages.hpp"
#include "gpu/lone_codec.hpp"
#endif

namespace py = pybind11;

namespace accdp::bind {
namespace {

#ifdef ACCDP_WITH_CUDA
/// Of device memory: address, bytes, whether it is read, and written, and whether what is read is fetched later.
using BlockOfDevice = std::tuple<std::uintptr_t, std::size_t, bool, bool, bool>;

std::vector<DeviceBlock> blocks_of(const std::vector<BlockOfDevice>& given) {
  std::vector<DeviceBlock> blocks;
  for (const auto& [ptr, bytes, is_read, is_written, later] : given)
    blocks.push_back({{reinterpret_cast<std::byte*>(ptr), bytes}, is_read && !later, is_written, is_read && later});
  return blocks;
}

DeviceRoute::Owners owners_of(py::object held) {
  if (held.is_none()) return {};
  return {held.release().ptr(), [](void* object) {
            const WithGil gil;
            Py_DECREF(static_cast<PyObject*>(object));
          }};
}

/// What Python lets go of may wait for other ranks.
struct CallOfPython final : DeviceCollectives {
  using DeviceCollectives::DeviceCollectives;
  ~CallOfPython() override {
    if (!has_failed()) return;
    const NoGil nogil;
    end();
  }
};
using CopiesOfPython = std::unique_ptr<HostCopies, EndWithoutGil>;
/// CUDA is called without the GIL: a function of another library that runs Python in a stream waits for it, and the
/// driver may keep us until that has returned.
using MarkOfPython = std::unique_ptr<StreamMark, EndWithoutGil>;

constexpr bool kIsBuilt = true;
CudaReport report() { return cuda_report(); }
std::vector<std::string> codecs_there() { return LoneCodec::names(); }
bool wait_for_readers(double seconds) { return await_readers(std::chrono::duration<double>(seconds)); }
#else
constexpr bool kIsBuilt = false;
CudaReport report() { return {.why_not = "accdp was built without CUDA"}; }
std::vector<std::string> codecs_there() { return {}; }
bool wait_for_readers(double) { return true; }
#endif

py::dict report_as_dict() {
  CudaReport found;
  {
    NoGil nogil;  // the driver may take seconds to start
    found = report();
  }
  py::dict entry;
  entry["built"] = kIsBuilt;
  entry["runtime_version"] = found.runtime_version;
  entry["driver_version"] = found.driver_version;
  entry["devices"] = found.devices;
  entry["why_not"] = found.why_not;
  return entry;
}

}  // namespace

void bind_device(py::module_& m) {
  using namespace py::literals;
  m.def("cuda_report", report_as_dict,
        "built, runtime_version, driver_version (13000 is 13.0; 0: none), devices, why_not (empty: GPUs can be used).");
  m.def("device_codecs", &codecs_there, py::call_guard<NoGil>(),
        "Names of the codecs that encode and decode on the current device, where nvCOMP's are tried once: its folder "
        "counts if it was told before.");
  m.def("await_readers", &wait_for_readers, "timeout_s"_a, py::call_guard<NoGil>(),
        "Before the process ends: wait until no other process will read its device memory any more. Returns whether it "
        "came to that, and says on standard error that it did not.");
  py::class_<Collectives>(m, "Collectives", "How a call is carried out: the argument `via` of Group's methods.");
  py::class_<DeviceTensors>(m, "DeviceTensors", "Tensors on a device behind their host copies.");
#ifdef ACCDP_WITH_CUDA
  m.def("device_of", &device_of, "ptr"_a, "name"_a, py::call_guard<NoGil>(), "The CUDA device that memory lies on.");
  py::class_<StreamMark, MarkOfPython>(m, "StreamMark",
                                       "What a stream held at one time, whatever becomes of the stream.");
  py::class_<DevicePath, std::shared_ptr<DevicePath>>(m, "DevicePath", "What a group's calls on device memory share.")
      .def(py::init([](std::shared_ptr<Group> group) {
             return std::shared_ptr<DevicePath>(new DevicePath(std::move(group)), EndWithoutGil());
           }),
           "group"_a)
      .def("describe", &DevicePath::describe, "How data goes between the ranks.")
      .def(
          "await_stream", [](DevicePath& path, int device, std::uintptr_t stream) { path.await(device, stream); },
          "device"_a, "stream"_a, py::call_guard<NoGil>(),
          "Wait until what the stream holds is done, before MPI gets memory of the device in a message of the group.")
      .def(
          "fetch",
          [](DevicePath& path, int device, std::uintptr_t stream, const std::vector<BlockOfDevice>& blocks,
             py::object owners) {
            DeviceRoute::Owners held = owners_of(std::move(owners));
            const NoGil nogil;
            path.admit(device, stream);
            return CopiesOfPython(path.fetch(device, stream, blocks_of(blocks), std::move(held)).release());
          },
          "device"_a, "stream"_a, "blocks"_a, "owners"_a,
          "Host copies of blocks of device memory: (address, bytes, is_read, is_written, is_fetched_later) each. "
          "owners: of that memory, kept if the device may go on with it after a failure.")
      .def(
          "fetch_behind",
          [](DevicePath& path, const StreamMark& mark, const std::vector<BlockOfDevice>& blocks, py::object owners) {
            DeviceRoute::Owners held = owners_of(std::move(owners));
            const NoGil nogil;
            return CopiesOfPython(path.fetch_behind(mark, blocks_of(blocks), std::move(held)).release());
          },
          "mark"_a, "blocks"_a, "owners"_a,
          "As fetch(), on any thread, after what was marked; deliver() returns when it is done.")
      .def(
          "mark",
          [](DevicePath& path, int device, std::uintptr_t stream) {
            path.admit(device, stream);
            return MarkOfPython(new StreamMark(device, stream));
          },
          "device"_a, "stream"_a, py::call_guard<NoGil>(), "What the stream holds now.")
      .def("capsule", [](std::shared_ptr<DevicePath> path) {
        return make_capsule<DeviceRoute>(std::move(path), kDeviceRouteCapsule);
      });
  py::class_<HostCopies, CopiesOfPython>(m, "HostCopies", "Host copies of device memory.")
      .def_property_readonly("pointers",
                             [](const HostCopies& copies) {
                               std::vector<std::uintptr_t> pointers;
                               for (const Bytes& block : copies.blocks())
                                 pointers.push_back(reinterpret_cast<std::uintptr_t>(block.data()));
                               return pointers;
                             })
      .def_property_readonly("on_device", py::cpp_function(&HostCopies::on_device, py::call_guard<NoGil>()),
                             py::return_value_policy::reference_internal,
                             "For the argument `on_device` of Group.bcast_stream and allreduce_stream: what is to be "
                             "fetched later, and encoded and decoded on the device.")
      .def("deliver", &HostCopies::deliver, py::call_guard<NoGil>(), "Copy what was written back to the device.");
  py::class_<CallOfPython, Collectives>(m, "DeviceCollectives",
                                        "One call on memory of a CUDA device. owners: of that memory, kept if the "
                                        "device may go on with it after a failure.")
      .def(py::init([](std::shared_ptr<DevicePath> path, int device, std::uintptr_t stream, py::object owners) {
             DeviceRoute::Owners held = owners_of(std::move(owners));
             const NoGil nogil;
             return new CallOfPython(std::move(path), device, stream, std::move(held));
           }),
           "path"_a, "device"_a, "stream"_a, "owners"_a);
  using nogil = py::call_guard<NoGil>;
  m.def(
      "send_from_device",
      [](Group& group, int device, std::uintptr_t stream, std::uintptr_t ptr, std::size_t count, Datatype type, int dst,
         std::int64_t tag) {
        const auto* data = reinterpret_cast<const std::byte*>(ptr);
        send_from_device(group, device, stream, {data, count * element_bytes(type)}, dst, tag, -1);
      },
      "group"_a, "device"_a, "stream"_a, "ptr"_a, "count"_a, "dtype"_a, "dst"_a, "tag"_a, nogil(),
      "Group.send for device memory.");
  m.def(
      "recv_to_device",
      [](Group& group, int device, std::uintptr_t stream, std::uintptr_t ptr, std::size_t count, Datatype type, int src,
         std::int64_t tag) {
        auto* data = reinterpret_cast<std::byte*>(ptr);
        return receive_to_device(group, device, stream, {data, count * element_bytes(type)}, src, tag, -1);
      },
      "group"_a, "device"_a, "stream"_a, "ptr"_a, "count"_a, "dtype"_a, "src"_a, "tag"_a, nogil(),
      "Group.recv for device memory.");
#endif
}

}  // namespace accdp::bind
