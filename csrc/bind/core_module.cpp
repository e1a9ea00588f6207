// The module _core: settings, statistics. The class Group is bound in core_group.cpp.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <pthread.h>

#include <map>
#include <thread>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/no_gil.hpp"
#include "base/settings.hpp"
#include "bind/core_codecs.hpp"
#include "bind/core_device.hpp"
#include "bind/core_errors.hpp"
#include "bind/core_group.hpp"
#include "bind/core_plan.hpp"
#include "bind/core_status.hpp"
#include "bind/system_text.hpp"
#include "coll/call.hpp"
#include "coll/cost.hpp"
#include "coll/event_log.hpp"
#include "coll/stream_codec.hpp"
#include "device/reduce.hpp"
#include "node/peer_memory.hpp"
#include "node/process.hpp"

namespace py = pybind11;

namespace accdp::bind {
namespace {

pthread_t g_main_thread;

// Only Python's main thread runs signal handlers, so only its waits can be broken by Ctrl-C.
void check_signals() {
  if (!pthread_equal(pthread_self(), g_main_thread) || !Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw Interrupted();
}

py::list settings_rows() {
  py::list rows;
  const Settings defaults;
  for (const Setting& row : setting_rows()) {
    py::dict entry;
    std::string name = row.name + sizeof "ACCDP_" - 1;
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    entry["name"] = name;
    entry["env"] = row.name;
    entry["value"] = decode_system(text_of(row, settings()));
    entry["default"] = text_of(row, defaults);
    entry["source"] = source_of(row);
    entry["accepts"] = row.accepts;
    entry["meaning"] = row.meaning;
    entry["shared"] = row.shared;
    rows.append(entry);
  }
  return rows;
}

py::list stats_rows() {
  py::list rows;
  for (const OpStats& row : op_stats()) {
    py::dict entry;
    entry["op"] = name_of(row.kind);
    entry["calls"] = row.calls;
    entry["bytes"] = row.bytes;
    entry["seconds"] = row.seconds;
    rows.append(entry);
  }
  return rows;
}

template <class Row>
py::list algorithm_list(const std::vector<Row>& table) {
  py::list rows;
  for (const Row& row : table) rows.append(py::make_tuple(row.name, row.meaning));
  return rows;
}

}  // namespace
}  // namespace accdp::bind

PYBIND11_MODULE(_core, m) {
  using namespace accdp;
  using namespace accdp::bind;
  m.doc() = "The core of accdp: groups of ranks and their collectives. Needs neither torch nor MPI.";
  m.attr("__version__") = ACCDP_VERSION;
  // Another thread may be the one that imports us.
  g_main_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<pthread_t>();
  // Of a forked child it is the one that forked.
  pthread_atfork(nullptr, nullptr, [] { g_main_thread = pthread_self(); });
  set_interrupt_check(check_signals);
  bind_errors(m);
  py::enum_<Datatype>(m, "Datatype")
      .value("bool_", Datatype::kBool)
      .value("u8", Datatype::kU8)
      .value("i8", Datatype::kI8)
      .value("u16", Datatype::kU16)
      .value("i16", Datatype::kI16)
      .value("u32", Datatype::kU32)
      .value("i32", Datatype::kI32)
      .value("u64", Datatype::kU64)
      .value("i64", Datatype::kI64)
      .value("f16", Datatype::kF16)
      .value("bf16", Datatype::kBF16)
      .value("f8e4m3", Datatype::kF8E4M3)
      .value("f8e5m2", Datatype::kF8E5M2)
      .value("f32", Datatype::kF32)
      .value("f64", Datatype::kF64)
      .value("c64", Datatype::kC64)
      .value("c128", Datatype::kC128)
      .value("bytes", Datatype::kBytes)
      .def_property_readonly("itemsize", &element_bytes)
      .def_property_readonly("may_have_bound", &is_real_float);
  py::enum_<ReduceOp>(m, "ReduceOp")
      .value("sum", ReduceOp::kSum)
      .value("avg", ReduceOp::kAvg)
      .value("prod", ReduceOp::kProd)
      .value("min", ReduceOp::kMin)
      .value("max", ReduceOp::kMax)
      .value("band", ReduceOp::kBand)
      .value("bor", ReduceOp::kBor)
      .value("bxor", ReduceOp::kBxor);
  m.def("settings", settings_rows,
        "One dict per setting: name, env, value, default, source, accepts, meaning, shared.");
  m.def(
      "set_settings",
      [](const std::map<std::string, std::pair<py::str, std::string>>& changes) {
        std::vector<Change> all;
        for (const auto& [name, to] : changes) all.push_back({name, encode_system(to.first), to.second});
        set_settings(all);
      },
      py::arg("changes"),
      "Change settings, all or none: environment variable's name -> (text, source), source as in settings().");
  m.def("settings_text", &shared_settings_text, "The settings that all ranks must share, as one string to compare.");
  m.def("stats", stats_rows,
        "One dict per operation, over all groups of this process since its start or reset_stats(): op, calls, bytes "
        "(that the caller handed in, or received where it handed in none), seconds inside calls, waiting for other "
        "ranks included. Local.");
  m.def("reset_stats", &reset_op_stats, "Set all counters of stats() to zero.");
  m.def(
      "log_events_into",
      [](const py::buffer& memory) {
        // Never released: threads of a group may log until the process ends.
        auto* held = new py::buffer_info(memory.request(true));
        log_events_into({static_cast<std::byte*>(held->ptr), static_cast<std::size_t>(held->size * held->itemsize)});
      },
      py::arg("memory"), "Log events (coll/event_log.hpp) into a writable buffer of zeros from now on.");
  m.def("log_event", &log_event, py::arg("label"), py::arg("samples") = 0.0, "Log an event, if there is a log.");
  m.def("nameless_memory", &nameless_memory, py::arg("label"),
        "A descriptor of new memory, as os.memfd_create, which not every build of Python has.");
  m.def("why_no_single_copy", &why_no_single_copy,
        "Why processes cannot read each other's memory here, as far as one of them can tell; empty if they can.");
  m.def("reduce_isa", &reduce_isa, "Instruction set of the reduction loops on this processor.");
  m.def("is_reducible", &is_reducible, py::arg("datatype"), py::arg("op"),
        "Whether elements of that datatype have that operation.");
  m.def(
      "reduce",
      [](std::uintptr_t dst, const std::vector<std::uintptr_t>& srcs, std::size_t count, Datatype type, ReduceOp op,
         int divisor, int times) {
        check_reducible(type, op);
        if (srcs.empty()) throw UsageError("srcs: expected at least one");
        std::vector<const void*> sources;
        for (std::uintptr_t source : srcs) sources.push_back(reinterpret_cast<const void*>(source));
        NoGil nogil;
        for (int i = 0; i < times; ++i) reduce(reinterpret_cast<void*>(dst), sources, count, {type, op, divisor});
      },
      py::arg("dst"), py::arg("srcs"), py::arg("count"), py::arg("datatype"), py::arg("op"), py::arg("divisor") = 0,
      py::arg("times") = 1, "The reduction loop of one rank, on addresses of `count` elements; `times` over.");
  m.def("process_lives", &process_lives, py::arg("pid"), py::arg("start_time"), "Whether that process still runs.");
  m.def(
      "bcast_algorithms", [] { return algorithm_list(bcast_algorithm_rows()); },
      "(name, meaning) of each way a broadcast may go between nodes.");
  m.def(
      "reduce_algorithms", [] { return algorithm_list(reduce_algorithm_rows()); },
      "(name, meaning) of each way an allreduce may go between nodes.");
  m.def(
      "check_stream", [](const std::string& codec, std::size_t chunk_bytes) { stream_options(codec, chunk_bytes, ""); },
      py::arg("codec"), py::arg("chunk_bytes") = 0, "Raise UsageError for a codec or chunk size that does not exist.");
  bind_codecs(m);
  bind_device(m);
  bind_device_codec(m);
  bind_plan(m);
  bind_status(m);
  bind_group(m);
}
