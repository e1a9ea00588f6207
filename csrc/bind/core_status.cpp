// What processes show of their groups (node/status.hpp), for accdp_comm/ps.
#include "bind/core_status.hpp"

#include <pybind11/stl.h>

#include "coll/call.hpp"
#include "node/status.hpp"

namespace py = pybind11;

namespace accdp::bind {
namespace {

ConstBytes bytes_of(const py::buffer_info& memory) {
  return {static_cast<const std::byte*>(memory.ptr), static_cast<std::size_t>(memory.size * memory.itemsize)};
}

py::dict wait_of(const GroupStatus::Wait& wait) {
  py::dict entry;
  entry["is_message"] = wait.channel == kPointToPoint;
  entry["is_attended"] = wait.is_attended;
  entry["what"] = wait.what;
  py::list ranks;
  for (const WaitedFor& peer : wait.ranks) ranks.append(py::make_tuple(peer.rank, peer.pid, peer.host));
  entry["ranks"] = ranks;
  entry["count"] = wait.count;
  entry["since_ns"] = wait.since_ns;
  entry["seen_ns"] = wait.seen_ns;
  return entry;
}

py::dict group_of(const GroupStatus& group) {
  py::dict entry;
  entry["group"] = group.group;
  entry["name"] = group.name;
  entry["rank"] = group.rank;
  entry["size"] = group.size;
  entry["nodes"] = group.nodes;
  entry["has_left"] = group.has_left;
  entry["failure"] = group.failure;
  entry["sequence"] = group.call.sequence;
  entry["call"] = group.call.sequence && group.call.kind < kOpKinds ? describe(group.call) : "";
  entry["begun_ns"] = group.begun_ns;
  entry["ended_ns"] = group.ended_ns;
  py::list waits;
  for (const GroupStatus::Wait& wait : group.waits) waits.append(wait_of(wait));
  entry["waits"] = waits;
  return entry;
}

}  // namespace

void bind_status(py::module_& m) {
  m.attr("STATUS_LABEL") = kStatusLabel;
  m.def(
      "read_status",
      [](const py::buffer& page) {
        const py::buffer_info memory = page.request();
        const StatusOfProcess found = read_status(bytes_of(memory));
        py::list groups;
        for (const GroupStatus& group : found.groups) groups.append(group_of(group));
        return py::make_tuple(found.pid, groups, found.not_shown);
      },
      py::arg("page"), "The owner's pid, one dict per group, and how many groups had no room (node/status.hpp).");
}

}  // namespace accdp::bind
