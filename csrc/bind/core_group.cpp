#include "bind/core_group.hpp"

#include <pybind11/stl.h>

#include <map>

#include "base/error.hpp"
#include "base/no_gil.hpp"
#include "bind/capsule.hpp"
#include "bind/core_calls.hpp"
#include "bind/core_messages.hpp"
#include "bind/core_plan.hpp"
#include "bind/stream_report.hpp"
#include "coll/group.hpp"

namespace py = pybind11;

namespace accdp::bind {
namespace {

// Buffers come as an address and a number of elements; accdp_comm/buffers.py has checked what they are.
using Address = std::uintptr_t;
using Block = std::pair<Address, std::size_t>;

Bytes writable(const Block& block, Datatype type) {
  return {reinterpret_cast<std::byte*>(block.first), block.second * element_bytes(type)};
}
ConstBytes readable(const Block& block, Datatype type) { return writable(block, type); }
std::vector<Bytes> writable(const std::vector<Block>& blocks, Datatype type) {
  std::vector<Bytes> spans;
  for (const Block& block : blocks) spans.push_back(writable(block, type));
  return spans;
}
std::vector<ConstBytes> readable(const std::vector<Block>& blocks, Datatype type) {
  std::vector<ConstBytes> spans;
  for (const Block& block : blocks) spans.push_back(readable(block, type));
  return spans;
}

constexpr double kGroups = -1;  // time-out: the group's

/// What a call is carried out by: host memory unless it says otherwise.
Collectives& kind_of(Collectives* via) { return via ? *via : host_collectives(); }

/// A tensor of a stream: address, elements, datatype, address of its reference or 0.
using Tensor = std::tuple<Address, std::size_t, Datatype, Address>;

py::dict bcast_stream(Group& group, const std::vector<Tensor>& tensors, int root, const std::string& codec,
                      std::size_t chunk_bytes, const std::string& algorithm, double error_bound, bool relative,
                      std::uint64_t label, DeviceTensors* on_device) {
  StreamReport report;
  {
    NoGil nogil;
    std::vector<Piece> pieces;
    for (const auto& [ptr, count, type, reference] : tensors) {
      const Bytes data = writable({ptr, count}, type);
      pieces.push_back({data, type, {reinterpret_cast<std::byte*>(reference), reference ? data.size() : 0}});
    }
    StreamOptions options = stream_options(codec, chunk_bytes, algorithm, {error_bound, relative}, label);
    options.on_device = on_device;
    report = group.bcast_stream(std::move(pieces), root, options);
  }
  return report_of(report);
}

/// Tensors of one datatype, one after the other from `ptr` on; residual: address of float32 of as many elements, or 0.
py::dict allreduce_stream(Group& group, Address ptr, const std::vector<std::size_t>& counts, Datatype type, ReduceOp op,
                          const std::string& codec, std::size_t chunk_bytes, double error_bound, bool relative,
                          Address residual, std::uint64_t label, DeviceTensors* on_device) {
  StreamReport report;
  {
    NoGil nogil;
    std::vector<Piece> pieces;
    std::size_t elements = 0;
    for (std::size_t count : counts) {
      pieces.push_back({writable({ptr + elements * element_bytes(type), count}, type), type});
      elements += count;
    }
    StreamOptions options = stream_options(codec, chunk_bytes, "", {error_bound, relative}, label);
    options.on_device = on_device;
    report = group.allreduce_stream(std::move(pieces), op, options,
                                    {reinterpret_cast<float*>(residual), residual ? elements : 0});
  }
  return report_of(report);
}

py::dict last_run(const Group& group) {
  py::dict entry;
  entry["algorithm"] = group.last_run().way.algorithm;
  entry["lanes"] = group.last_run().way.lanes;
  entry["chunk_bytes"] = group.last_run().way.chunk_bytes;
  entry["steps"] = group.last_run().steps;
  entry["wire_bytes"] = group.last_run().wire_bytes;
  return entry;
}

std::shared_ptr<Group> make_group(std::string name, int rank, std::vector<Peer> peers, int segment_fd, double timeout_s,
                                  const py::object& wire, const py::object& notices, const std::string& identity) {
  std::shared_ptr<Wire> link;
  if (!wire.is_none()) link = from_capsule<Wire>(wire, kWireCapsule);
  std::shared_ptr<Notices> place;
  if (!notices.is_none()) place = from_capsule<Notices>(notices, kNoticesCapsule);
  NoGil nogil;
  const std::shared_ptr<Group> group(
      new Group(std::move(name), rank, std::move(peers), segment_fd, timeout_s, std::move(link), identity),
      [](Group* last) { without_gil([last] { Group::End()(last); }); });
  group->set_notices(std::move(place));
  return group;
}

}  // namespace

void bind_group(py::module_& m) {
  using namespace py::literals;
  const auto via = py::arg("via") = static_cast<Collectives*>(nullptr);
  using nogil = py::call_guard<NoGil>;
  py::class_<Peer>(m, "Peer", "A rank of a group that is to be formed (csrc/coll/fabric.hpp).")
      .def(py::init([](std::string host, int pid, std::uint64_t start_time, int node, double cores, double paid,
                       std::map<std::string, std::string> lacks) {
             return Peer{std::move(host), pid, start_time, node, cores, paid, std::move(lacks)};
           }),
           py::kw_only(), "host"_a, "pid"_a, "start_time"_a, "node"_a, "cores"_a, "paid"_a, "lacks"_a);
  py::class_<Group, std::shared_ptr<Group>> group(m, "Group", "A set of ranks that communicate (csrc/coll/group.hpp).");
  bind_calls(m, group);
  bind_messages(m, group);
  group
      .def(py::init(&make_group), py::kw_only(), "name"_a, "rank"_a, "peers"_a, "segment_fd"_a, "timeout_s"_a, "wire"_a,
           "notices"_a, "identity"_a = "")
      .def_property_readonly("rank", &Group::rank)
      .def_property_readonly("size", &Group::size)
      .def_property_readonly("name", &Group::name)
      .def_property_readonly("sequence", &Group::sequence)
      .def_property_readonly("why_no_single_copy", &Group::why_no_single_copy)
      .def_property("timeout_s", &Group::timeout_s, &Group::set_timeout_s)
      .def_property_readonly("is_busy", &Group::is_busy)
      .def_property_readonly("is_inherited", &Group::is_inherited)
      .def(
          "check_caller", [](const Group& group) { group.check_caller("an asynchronous operation"); },
          "Raises UsageError where this thread cannot wait for one.")
      .def_property("deterministic", &Group::deterministic, &Group::set_deterministic)
      .def_property_readonly("nodes",
                             [](const Group& g) {
                               std::vector<int> nodes;
                               for (int rank = 0; rank < g.size(); ++rank) nodes.push_back(g.topology().node_of(rank));
                               return nodes;
                             })
      .def_property_readonly("shape", &Group::shape, py::return_value_policy::copy)
      .def_property_readonly("machine", &Group::machine, py::return_value_policy::copy)
      .def_property_readonly("last_run", &last_run)
      .def(
          "plan",
          [](const Group& g, const std::string& op, std::size_t nbytes, Datatype type) {
            return entries_of(g.plan(planned_op_named(op), {nbytes, partial_width(type)}));
          },
          "op"_a, "nbytes"_a, "datatype"_a = Datatype::kBytes)
      .def(
          "measure", [](Group& g) { g.measure(); }, nogil())
      .def(
          "barrier", [](Group& g) { g.barrier(); }, nogil())
      .def(
          "bcast",
          [](Group& g, Address ptr, std::size_t count, Datatype type, int root, Collectives* via) {
            g.bcast(writable({ptr, count}, type), type, root, kGroups, kind_of(via));
          },
          "ptr"_a, "count"_a, "dtype"_a, "root"_a, via, nogil())
      .def(
          "allreduce",
          [](Group& g, Address src, Address dst, std::size_t count, Datatype type, ReduceOp op, Collectives* via) {
            g.allreduce(readable({src, count}, type), writable({dst, count}, type), type, op, kGroups, kind_of(via));
          },
          "src"_a, "dst"_a, "count"_a, "dtype"_a, "op"_a, via, nogil())
      .def(
          "reduce",
          [](Group& g, Address src, Address dst, std::size_t count, Datatype type, ReduceOp op, int root,
             Collectives* via) {
            // Ranks other than root may give no destination.
            g.reduce(readable({src, count}, type), writable({dst, dst ? count : 0}, type), type, op, root, kGroups,
                     kind_of(via));
          },
          "src"_a, "dst"_a, "count"_a, "dtype"_a, "op"_a, "root"_a, via, nogil())
      .def(
          "allgather",
          [](Group& g, Address src, std::size_t count, const std::vector<Block>& dsts, Datatype type,
             Collectives* via) {
            g.allgather(readable({src, count}, type), writable(dsts, type), type, kGroups, kind_of(via));
          },
          "src"_a, "count"_a, "dsts"_a, "dtype"_a, via, nogil())
      .def(
          "reduce_scatter",
          [](Group& g, const std::vector<Block>& srcs, Address dst, std::size_t count, Datatype type, ReduceOp op,
             Collectives* via) {
            g.reduce_scatter(readable(srcs, type), writable({dst, count}, type), type, op, kGroups, kind_of(via));
          },
          "srcs"_a, "dst"_a, "count"_a, "dtype"_a, "op"_a, via, nogil())
      .def(
          "gather",
          [](Group& g, Address src, std::size_t count, const std::vector<Block>& dsts, Datatype type, int root,
             Collectives* via) {
            g.gather(readable({src, count}, type), writable(dsts, type), type, root, kGroups, kind_of(via));
          },
          "src"_a, "count"_a, "dsts"_a, "dtype"_a, "root"_a, via, nogil())
      .def(
          "scatter",
          [](Group& g, const std::vector<Block>& srcs, Address dst, std::size_t count, Datatype type, int root,
             Collectives* via) {
            g.scatter(readable(srcs, type), writable({dst, count}, type), type, root, kGroups, kind_of(via));
          },
          "srcs"_a, "dst"_a, "count"_a, "dtype"_a, "root"_a, via, nogil())
      .def(
          "alltoall",
          [](Group& g, const std::vector<Block>& srcs, const std::vector<Block>& dsts, Datatype type,
             Collectives* via) { g.alltoall(readable(srcs, type), writable(dsts, type), type, kGroups, kind_of(via)); },
          "srcs"_a, "dsts"_a, "dtype"_a, via, nogil())
      .def(
          "send",
          [](Group& g, Address ptr, std::size_t count, Datatype type, int dst, std::int64_t tag) {
            g.send_now(readable({ptr, count}, type), dst, tag);
          },
          "ptr"_a, "count"_a, "dtype"_a, "dst"_a, "tag"_a, nogil())
      .def(
          "recv",
          [](Group& g, Address ptr, std::size_t count, Datatype type, int src, std::int64_t tag) {
            return g.receive_now(writable({ptr, count}, type), src, tag);
          },
          "ptr"_a, "count"_a, "dtype"_a, "src"_a, "tag"_a, nogil())
      .def("bcast_stream", &bcast_stream, "tensors"_a, "root"_a, "codec"_a, "chunk_bytes"_a = 0, "algorithm"_a = "",
           "error_bound"_a = 0.0, "relative"_a = false, "label"_a = 0, "on_device"_a = py::none())
      .def("allreduce_stream", &allreduce_stream, "ptr"_a, "counts"_a, "dtype"_a, "op"_a, "codec"_a,
           "chunk_bytes"_a = 0, "error_bound"_a = 0.0, "relative"_a = false, "residual"_a = 0, "label"_a = 0,
           "on_device"_a = py::none())
      .def("abort", &Group::abort, "reason"_a, nogil())
      .def("close",
           [](Group& g) {
             const Sweep after;
             const NoGil release;
             g.close();
           })
      .def("capsule", [](std::shared_ptr<Group> g) { return make_capsule(std::move(g), kGroupCapsule); });
}

}  // namespace accdp::bind
