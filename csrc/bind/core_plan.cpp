// Costs and plans: pure functions of a size, a shape and a machine (coll/cost.hpp, coll/plan.hpp).
#include "bind/core_plan.hpp"

#include <pybind11/stl.h>

#include <limits>
#include <optional>

#include "base/error.hpp"
#include "coll/meeting.hpp"
#include "coll/plan.hpp"
#include "coll/segment_pipeline.hpp"

namespace py = pybind11;

namespace accdp::bind {

OpKind planned_op_named(const std::string& name) {
  std::string known;
  for (OpKind op : planned_ops()) {
    if (name == name_of(op)) return op;
    known += (known.empty() ? "" : ", ") + std::string(name_of(op));
  }
  throw UsageError("op=" + name + ": expected one of " + known);
}

namespace {

py::dict entry_of(const Alternative& way) {
  py::dict entry;
  entry["algorithm"] = way.algorithm;
  entry["lanes"] = way.lanes;
  entry["chunk_bytes"] = way.estimate.chunk_bytes;
  entry["steps"] = way.estimate.steps;
  entry["wire_bytes"] = way.estimate.wire_bytes;
  entry["seconds"] = way.estimate.seconds < 0 ? py::object(py::none()) : py::float_(way.estimate.seconds);
  entry["remark"] = way.remark;
  return entry;
}

}  // namespace

py::list entries_of(const Plan& plan) {
  py::list entries;
  entries.append(entry_of(plan.chosen));
  for (const Alternative& other : plan.others) entries.append(entry_of(other));
  return entries;
}

namespace {

py::list plan(const std::string& op, std::size_t nbytes, const Shape& shape, const Machine& machine, Datatype type,
              std::optional<bool> deterministic) {
  Asked asked = asked_by_settings();
  asked.in_rank_order = deterministic.value_or(asked.in_rank_order);
  return entries_of(plan_of(planned_op_named(op), {nbytes, partial_width(type)}, shape, machine, asked));
}

}  // namespace

void bind_plan(py::module_& m) {
  using namespace py::literals;
  py::class_<Shape>(m, "Shape", "Where the ranks of a group are, and how its shared memory is cut.")
      .def(py::init([](int nodes, int local_size, std::size_t slot_bytes, std::size_t flat_bytes) {
             if (nodes < 1 || local_size < 1 || nodes > std::numeric_limits<int>::max() / local_size)
               throw UsageError("shape: expected at least one node and one rank on each, and ranks that an int counts");
             return Shape::even(nodes, local_size, Board::slot_bytes_for(local_size, slot_bytes), flat_bytes);
           }),
           py::kw_only(), "nodes"_a, "local_size"_a, "slot_bytes"_a, "flat_bytes"_a, "Nodes with as many ranks each.")
      .def_readonly("nodes", &Shape::nodes)
      .def_readonly("local_size", &Shape::local_size, "Ranks on each node; 0 where nodes differ.")
      .def_readonly("ranks", &Shape::ranks)
      .def_readonly("slot_bytes", &Shape::slot_bytes)
      .def_readonly("flat_bytes", &Shape::flat_bytes)
      .def_readwrite("meets_at_hub", &Shape::meets_at_hub,
                     "Whether leaders compare their calls at node 0, since nodes share cores.");
  py::class_<Machine>(m, "Machine", "Alpha and beta of wire and node; where nothing was measured, the usual ones.")
      .def(py::init<>())
      .def_property(
          "link_bytes_per_s", [](const Machine& it) { return it.link.bytes_per_s; },
          [](Machine& it, double value) { it.link.bytes_per_s = value; })
      .def_property(
          "latency_s", [](const Machine& it) { return it.link.latency_s; },
          [](Machine& it, double value) { it.link.latency_s = value; })
      .def_readwrite("message_s", &Machine::message_s)
      .def_readwrite("step_s", &Machine::step_s)
      .def_readwrite("node_bytes_per_s", &Machine::node_bytes_per_s)
      .def_readwrite("reduce_bytes_per_s", &Machine::reduce_bytes_per_s)
      .def("__repr__", [](const Machine& it) {
        return py::str(
                   "Machine(link_bytes_per_s={:.4g}, latency_s={:.3g}, message_s={:.3g}, step_s={:.3g}, "
                   "node_bytes_per_s={:.4g}, reduce_bytes_per_s={:.4g})")
            .format(it.link.bytes_per_s, it.link.latency_s, it.message_s, it.step_s, it.node_bytes_per_s,
                    it.reduce_bytes_per_s);
      });
  m.def("plan", plan, "op"_a, "nbytes"_a, "shape"_a, "machine"_a, "datatype"_a = Datatype::kBytes,
        "deterministic"_a = py::none(),
        "The ways to do an operation, the one that is chosen first: algorithm, lanes, chunk_bytes, steps, wire_bytes, "
        "seconds (None: no model), remark.");
  m.def(
      "planned_ops",
      [] {
        std::vector<std::string> names;
        for (OpKind op : planned_ops()) names.push_back(name_of(op));
        return names;
      },
      "Operations that plan() takes.");
  m.attr("SIGNATURE_BYTES") = kSignatureBytes;
  m.def(
      "meeting_rounds",
      [](int nodes) {
        std::vector<std::pair<int, int>> rounds;
        for_meeting_rounds(nodes, [&](int distance, int messages) { rounds.emplace_back(distance, messages); });
        return rounds;
      },
      "nodes"_a,
      "How leaders compare their calls. For each round: the distance, and how many leaders, 1, 2, ... times as far "
      "away, each of them tells.");
  m.def("meets_at_hub", &meets_at_hub, "nodes"_a, "cores_per_node"_a,
        "Whether leaders of so many nodes compare their calls at node 0; elsewhere as meeting_rounds() says.");
  m.def("bcasts_by_tree", &bcasts_by_tree, "nbytes"_a, "shape"_a,
        "Whether a broadcast over nodes that goes along with the signatures does so along a binomial tree.");
  m.def("reduces_with_signatures", &reduces_with_signatures, "nbytes"_a, "shape"_a,
        "Whether a reduction over nodes is so short that it goes along with the signatures.");
  m.def(
      "segments_under_way", [](std::size_t bytes) { return SegmentPipeline::under_way(bytes); }, "segment_bytes"_a,
      "Of a pipeline of uncompressed segments: how many are between their node's two halves of the work at once.");
}

}  // namespace accdp::bind
