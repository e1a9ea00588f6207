// The module _mpi: the only one that links an MPI library; imported when a job needs it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <type_traits>

#include "base/no_gil.hpp"
#include "bind/capsule.hpp"
#include "mpi/exchange.hpp"
#include "mpi/groups.hpp"
#include "mpi/lines.hpp"
#include "mpi/world.hpp"

namespace py = pybind11;

namespace accdp::bind {
namespace {

// A handle is an int in MPICH and a pointer in Open MPI; mpi4py gives both as an integer.
template <class Comm>
Comm comm_from(std::uintptr_t value) {
  if constexpr (std::is_pointer_v<Comm>)
    return reinterpret_cast<Comm>(value);
  else
    return static_cast<Comm>(value);
}

MPI_Comm comm_from(const py::object& handle) {
  return handle.is_none() ? MPI_COMM_NULL : comm_from<MPI_Comm>(handle.cast<std::uintptr_t>());
}

}  // namespace
}  // namespace accdp::bind

PYBIND11_MODULE(_mpi, m) {
  using namespace accdp;
  using namespace accdp::bind;
  using namespace py::literals;
  using nogil = py::call_guard<NoGil>;
  py::module_::import("accdp_comm._core");  // brings the exception types
  m.doc() = "MPI, as far as accdp uses it: the world, small exchanges while groups are made, and wires between nodes.";
  m.def("library", &mpi::library, "MPI_Get_library_version; works before initialisation.");
  m.def("abi", &mpi::flavour, "'mpich', 'openmpi' or 'other': what this module was built with.");
  m.def("is_cuda_aware", &mpi::is_cuda_aware, "Whether the library says that it takes device memory of CUDA.");
  m.def("is_initialized", &mpi::is_initialized);
  m.def("init", &mpi::init, "Initialise MPI with MPI_THREAD_MULTIPLE unless it is already.", nogil());
  m.def("join", &mpi::join, nogil(), "Whether all ranks of MPI_COMM_WORLD have joined; call it again until they have.");
  m.def("thread_level", &mpi::thread_level);
  m.def("world_rank", &mpi::world_rank);
  m.def("world_size", &mpi::world_size);
  using ExchangePtr = std::unique_ptr<mpi::Exchange, EndWithoutGil>;
  py::class_<mpi::Exchange, ExchangePtr>(m, "Exchange",
                                         "Bytes among the ranks of an MPI communicator that form a group; collective.")
      .def(py::init([](const py::object& comm) {
             const MPI_Comm among = comm_from(comm);
             NoGil release;  // a communicator's attributes may be copied by Python
             return ExchangePtr(new mpi::Exchange(among));
           }),
           "comm"_a = py::none())
      .def(
          "allgather",
          [](mpi::Exchange& exchange, const py::bytes& data, double timeout_s) {
            const std::string mine = data;
            std::vector<std::string> all;
            {
              NoGil release;
              all = exchange.allgather(mine, timeout_s);
            }
            py::list result;
            for (const std::string& part : all) result.append(py::bytes(part));
            return result;
          },
          "data"_a, "timeout_s"_a, "Everybody's bytes in rank order.");
  m.def(
      "wire",
      [](const std::vector<int>& world_ranks, const std::string& identity) {
        std::shared_ptr<Wire> wire;
        {
          NoGil release;
          wire = mpi::make_wire(world_ranks, identity);
        }
        return make_capsule(std::move(wire), kWireCapsule);
      },
      "world_ranks"_a, "identity"_a,
      "A wire among those ranks of MPI_COMM_WORLD; called by them only. identity: of no other group of theirs.");
  m.def("held_wires", &mpi::held_wires, "Communicators of wires, open or waiting for farewells; for tests.");
  m.def("check_safe", &mpi::check_safe, "Throw MpiError where MPI is not used any more in this process.");
  m.def("watch_lines", &mpi::watch_lines, "fds"_a,
        "A socket to each rank of MPI_COMM_WORLD, or -1, which breaks when the rank's process ends.");
  m.def("has_ended", &mpi::has_ended, "rank"_a,
        "Whether a rank of MPI_COMM_WORLD has ended, as far as its line, if it has one, tells.");
  m.def("set_deaths_end_the_job", &mpi::set_deaths_end_the_job, "they_do"_a,
        "Whether the launcher ends all ranks when one dies, so that a rank that is late must live.");
  m.def("finalize", &mpi::finalize, "timeout_s"_a = std::numeric_limits<double>::infinity(), "after_failure_s"_a = 0,
        "leave_open"_a = false, "pmi_fd"_a = -1, nogil(),
        "Leave MPI if init() initialised it, with all other ranks where they come in time.");
}
