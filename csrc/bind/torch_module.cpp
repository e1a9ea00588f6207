// The module _torch: the c10d backend. Built with torch's own pybind11, so that c10d's types are known.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "base/error.hpp"
#include "bind/capsule.hpp"
#include "torch/process_group.hpp"

namespace py = pybind11;
using accdp::torch_backend::ProcessGroupAccdp;

namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using AccdpPtr = c10::intrusive_ptr<ProcessGroupAccdp>;
using OptionsPtr = c10::intrusive_ptr<c10d::Backend::Options>;

AccdpPtr make_process_group(int rank, int size, const py::object& group, std::chrono::milliseconds timeout,
                            const std::string& name, const std::vector<uint64_t>& global_ranks) {
  auto options = c10::make_intrusive<c10d::Backend::Options>("accdp", timeout);
  options->group_name = name;
  options->global_ranks_in_group = global_ranks;
  return c10::make_intrusive<ProcessGroupAccdp>(
      rank, size, accdp::bind::from_capsule<accdp::Group>(group, accdp::bind::kGroupCapsule), std::move(options));
}

void set_split(py::function make) {
  // Lives as long as the interpreter: released before it ends, it would need the GIL in a destructor.
  auto* held = new py::function(std::move(make));
  ProcessGroupAccdp::set_splitter([held](const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                         int rank, const OptionsPtr& options) {
    py::gil_scoped_acquire gil;
    return (*held)(store, ranks, rank, static_cast<int>(ranks.size()), options->timeout, options->group_name)
        .cast<BackendPtr>();
  });
}

}  // namespace

PYBIND11_MODULE(_torch, m) {
  m.doc() = "The torch.distributed backend of accdp.";
  m.attr("torch_version") = ACCDP_TORCH_VERSION;
  py::module_::import("torch.distributed");
  py::class_<ProcessGroupAccdp, AccdpPtr, c10d::Backend>(m, "ProcessGroupAccdp",
                                                         "A c10d Backend over the group in the capsule.")
      .def(py::init(&make_process_group), py::arg("rank"), py::arg("size"), py::arg("group"), py::arg("timeout"),
           py::arg("name") = "", py::arg("global_ranks") = std::vector<uint64_t>())
      .def_property_readonly("options", &ProcessGroupAccdp::getBackendOptions)
      .def("_set_default_timeout", &ProcessGroupAccdp::setTimeout, py::arg("timeout"));
  m.def("set_split", &set_split, py::arg("make"),
        "make(store, ranks, rank, size, timeout, name) -> Backend: called when a group is split.");
}
