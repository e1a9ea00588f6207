// The module _torch: the c10d backend. Built with torch's own pybind11, so that c10d's types are known.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "base/error.hpp"
#include "base/no_gil.hpp"
#include "bind/capsule.hpp"
#include "bind/stream_report.hpp"
#include "torch/process_group.hpp"
#include "torch/store_notices.hpp"

namespace py = pybind11;
using accdp::NoGil;
using accdp::torch_backend::ProcessGroupAccdp;

namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using AccdpPtr = c10::intrusive_ptr<ProcessGroupAccdp>;
using OptionsPtr = c10::intrusive_ptr<c10d::Backend::Options>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using accdp::torch_backend::BackendOptions;

AccdpPtr make_process_group(int rank, int size, const py::object& group, std::chrono::milliseconds timeout,
                            const std::string& name, const std::vector<uint64_t>& global_ranks,
                            const py::object& device_path, const std::string& device_type, StorePtr store,
                            std::string label, std::pair<int, int> seat) {
  auto options = c10::make_intrusive<BackendOptions>("accdp", timeout);
  options->group_name = name;
  options->global_ranks_in_group = global_ranks;
  std::shared_ptr<accdp::DeviceRoute> route;
  if (!device_path.is_none())
    route = accdp::bind::from_capsule<accdp::DeviceRoute>(device_path, accdp::bind::kDeviceRouteCapsule);
  return ProcessGroupAccdp::make(rank, size, accdp::bind::from_capsule<accdp::Group>(group, accdp::bind::kGroupCapsule),
                                 std::move(options), std::move(route), c10::Device(device_type).type(),
                                 accdp::torch_backend::Origin{std::move(store), std::move(label), seat});
}

ProcessGroupAccdp::StreamCall stream_call(std::string codec, std::size_t chunk_bytes, std::string algorithm,
                                          double error_bound, bool relative, std::uint64_t label) {
  return {std::move(codec), chunk_bytes, std::move(algorithm), {error_bound, relative}, label};
}

/// A compressed operation under way, for callers who know the core's errors rather than torch's.
struct StreamUnderWay {
  c10::intrusive_ptr<accdp::torch_backend::Work> work;
  std::shared_ptr<accdp::StreamReport> report;

  bool ends_within(std::chrono::milliseconds timeout) const {
    const NoGil nogil;
    work->prepare_wait(timeout);
    if (!work->wait_done(timeout)) return false;
    work->throw_if_failed();
    work->synchronize();
    return true;
  }
  /// None where it has not ended by then.
  py::object wait(std::optional<std::chrono::milliseconds> timeout) const {
    if (!ends_within(timeout.value_or(kNoTimeout))) return py::none();
    return accdp::bind::report_of(*report);
  }
};

void set_makers(py::function split, py::function shrink, py::function merge) {
  // They live as long as the interpreter: released before it ends, they would need the GIL in a destructor.
  auto* splits = new py::function(std::move(split));
  auto* shrinks = new py::function(std::move(shrink));
  auto* merges = new py::function(std::move(merge));
  ProcessGroupAccdp::set_makers(
      {[splits](const AccdpPtr& parent, const std::vector<int>& ranks, int rank, const OptionsPtr& options,
                const std::string& label) {
         py::gil_scoped_acquire gil;
         return (*splits)(parent, ranks, rank, options, options->group_name, label).cast<BackendPtr>();
       },
       [shrinks](const AccdpPtr& parent, const std::vector<int>& ranks, int rank, const OptionsPtr& options,
                 const std::string& label) {
         py::gil_scoped_acquire gil;
         return (*shrinks)(parent, ranks, rank, options, label).cast<BackendPtr>();
       },
       [merges](const AccdpPtr& parent, const StorePtr& store, int rank, int size, const OptionsPtr& options) {
         py::gil_scoped_acquire gil;
         return (*merges)(parent, store, rank, size, options, options->group_name).cast<BackendPtr>();
       }});
}

py::capsule notices(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key) {
  std::shared_ptr<accdp::Notices> made = std::make_shared<accdp::torch_backend::StoreNotices>(store, key);
  return accdp::bind::make_capsule(std::move(made), accdp::bind::kNoticesCapsule);
}

}  // namespace

PYBIND11_MODULE(_torch, m) {
  m.doc() = "The torch.distributed backend of accdp.";
  m.attr("torch_version") = ACCDP_TORCH_VERSION;
  py::module_::import("torch.distributed");
  const auto translator = accdp::bind::from_capsule<accdp::bind::ErrorTranslator>(
      py::module_::import("accdp_comm._core").attr("_error_translator"), accdp::bind::kErrorTranslatorCapsule);
  py::register_local_exception_translator(accdp::bind::ErrorTranslator(*translator));
  py::class_<StreamUnderWay>(m, "StreamUnderWay", "A compressed operation; wait() raises accdp_comm's errors.")
      .def_property_readonly("work",
                             [](const StreamUnderWay& self) { return c10::intrusive_ptr<c10d::Work>(self.work); })
      .def("wait", &StreamUnderWay::wait, py::arg("timeout"), "Its report, or None where it has not ended by then.");
  py::class_<BackendOptions, c10::intrusive_ptr<BackendOptions>, c10d::Backend::Options>(
      m, "BackendOptions", "Options of a group, as torch's own; split_group() copies them.")
      .def("__deepcopy__",
           [](const BackendOptions& self, const py::dict&) { return c10::make_intrusive<BackendOptions>(self); });
  py::class_<ProcessGroupAccdp, AccdpPtr, c10d::Backend>(m, "ProcessGroupAccdp",
                                                         "A c10d Backend over the group in the capsule.")
      .def(py::init(&make_process_group), py::arg("rank"), py::arg("size"), py::arg("group"), py::arg("timeout"),
           py::arg("name") = "", py::arg("global_ranks") = std::vector<uint64_t>(), py::arg("device_path") = py::none(),
           py::arg("device_type") = "cuda", py::arg("store") = StorePtr(), py::arg("label") = "",
           py::arg("seat") = std::pair(0, 1))
      .def_property_readonly("options", &ProcessGroupAccdp::getBackendOptions)
      .def_property_readonly("device_path", &ProcessGroupAccdp::device_path)
      .def_property_readonly("store", [](const ProcessGroupAccdp& self) { return self.origin().store; })
      .def_property_readonly("label", [](const ProcessGroupAccdp& self) { return self.origin().label; })
      .def_property_readonly("seat", [](const ProcessGroupAccdp& self) { return self.origin().seat; })
      .def("has_ended", &ProcessGroupAccdp::has_ended, py::arg("rank"), "Whether its process has, as far as is known.")
      .def("behave_like", &ProcessGroupAccdp::behave_like, py::arg("other"))
      // Ranks outside of a new group take no part in it, where torch asks those of NCCL to.
      .def(
          "perform_nocolor_split", [](const ProcessGroupAccdp&, const py::object&) {}, py::arg("device"))
      .def("abort_because", &ProcessGroupAccdp::abort_because, py::arg("reason"), py::call_guard<NoGil>())
      .def("shutdown_briefly", &ProcessGroupAccdp::shutdown_briefly, py::arg("most"), py::call_guard<NoGil>())
      .def("set_deterministic", &ProcessGroupAccdp::set_deterministic, py::arg("on"))
      .def("measure",
           [](ProcessGroupAccdp& self) {
             const accdp::Machine found = [&] {
               NoGil nogil;
               return self.measure();
             }();
             // _core's class is not known to this module, whose pybind11 is torch's.
             return std::map<std::string, double>{{"link_bytes_per_s", found.link.bytes_per_s},
                                                  {"latency_s", found.link.latency_s},
                                                  {"message_s", found.message_s},
                                                  {"step_s", found.step_s},
                                                  {"node_bytes_per_s", found.node_bytes_per_s},
                                                  {"reduce_bytes_per_s", found.reduce_bytes_per_s}};
           })
      .def(
          "set_bcast",
          [](ProcessGroupAccdp& self, std::string codec, std::size_t chunk_bytes, double error_bound) {
            self.set_bcast(stream_call(std::move(codec), chunk_bytes, "", error_bound, false, 0));
          },
          py::arg("codec"), py::arg("chunk_bytes"), py::arg("error_bound"))
      .def(
          "bcast_stream",
          [](ProcessGroupAccdp& self, std::vector<at::Tensor> tensors,
             const std::vector<std::optional<at::Tensor>>& references, int root, std::string codec,
             std::size_t chunk_bytes, std::string algorithm, double error_bound, bool relative, std::uint64_t label,
             bool is_async, std::chrono::milliseconds timeout) {
            std::vector<at::Tensor> old;
            for (const auto& reference : references) old.push_back(reference.value_or(at::Tensor()));
            auto report = std::make_shared<accdp::StreamReport>();
            NoGil nogil;
            auto work = self.bcast_stream(
                std::move(tensors), std::move(old), root,
                stream_call(std::move(codec), chunk_bytes, std::move(algorithm), error_bound, relative, label),
                is_async, timeout, report);
            return StreamUnderWay{std::move(work), std::move(report)};
          },
          py::arg("tensors"), py::arg("references"), py::arg("root"), py::arg("codec"), py::arg("chunk_bytes"),
          py::arg("algorithm"), py::arg("error_bound"), py::arg("relative"), py::arg("label"), py::arg("is_async"),
          py::arg("timeout"))
      .def(
          "allreduce_stream",
          [](ProcessGroupAccdp& self, at::Tensor tensor, std::vector<std::int64_t> counts, const c10d::ReduceOp& op,
             std::string codec, std::size_t chunk_bytes, double error_bound, bool relative,
             const std::optional<at::Tensor>& residual, std::uint64_t label, bool is_async,
             std::chrono::milliseconds timeout) {
            auto report = std::make_shared<accdp::StreamReport>();
            NoGil nogil;
            auto work =
                self.allreduce_stream(std::move(tensor), std::move(counts), op,
                                      stream_call(std::move(codec), chunk_bytes, "", error_bound, relative, label),
                                      residual.value_or(at::Tensor()), is_async, timeout, report);
            return StreamUnderWay{std::move(work), std::move(report)};
          },
          py::arg("tensor"), py::arg("counts"), py::arg("op"), py::arg("codec"), py::arg("chunk_bytes"),
          py::arg("error_bound"), py::arg("relative"), py::arg("residual"), py::arg("label"), py::arg("is_async"),
          py::arg("timeout"))
      .def(
          "table",
          [](ProcessGroupAccdp& self, std::vector<std::int64_t> row) {
            const auto rows = std::make_shared<std::vector<std::int64_t>>();
            const StreamUnderWay under_way = [&] {
              NoGil nogil;
              return StreamUnderWay{self.table(std::move(row), rows), {}};
            }();
            under_way.ends_within(kNoTimeout);
            return *rows;
          },
          py::arg("row"), "The rows of all ranks, one behind the other.")
      .def("_set_default_timeout", &ProcessGroupAccdp::setTimeout, py::arg("timeout"));
  m.def("notices", &notices, py::arg("store"), py::arg("key"), "Where a group's failures are told beside MPI.");
  m.def("open_groups", &ProcessGroupAccdp::open,
        "The groups of this process that were not shut down, the oldest first, whoever has made them.");
  m.def("set_makers", &set_makers, py::arg("split"), py::arg("shrink"), py::arg("merge"),
        "split(parent, ranks, rank, options, name, label), shrink(parent, ranks, rank, options, label) and "
        "merge(parent, store, rank, size, options, name) -> Backend: called when a group is split, shrunk or joined.");
}
