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

/// Another process may have written anything.
py::str text_of(const std::string& text) {
  return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(text.data(), py::ssize_t(text.size()), "replace"));
}

std::string words_of(const Signature& call) {
  const bool is_known = call.kind < kOpKinds && call.type <= Datatype::kBytes &&
                        (call.op == 255 || call.op <= static_cast<std::uint8_t>(ReduceOp::kBxor));
  return is_known ? describe(call) : "operation";
}

py::tuple names(std::uint32_t parts, std::uint32_t send, std::uint32_t receive, std::uint32_t any = 0) {
  py::list found;
  if (parts & send) found.append("send");
  if (parts & receive) found.append("recv");
  if (parts & any) found.append("any");
  return found;
}

py::dict wait_of(const GroupStatus::Wait& wait) {
  py::dict entry;
  entry["is_message"] = wait.kind != kForCollective;
  entry["is_attended"] = wait.kind == kForAttended;
  entry["is_for_any"] = wait.is_for_any;
  entry["is_partial"] = wait.is_partial;
  entry["what"] = text_of(wait.what);
  py::list ranks;
  for (const WaitedFor& peer : wait.ranks)
    ranks.append(py::make_tuple(peer.rank, peer.pid, text_of(peer.host),
                                names(peer.parts, kAwaitsSend, kAwaitsReceive, kAwaitsAny),
                                names(peer.parts, kSends, kReceives)));
  entry["ranks"] = ranks;
  entry["count"] = wait.count;
  entry["since_ns"] = wait.since_ns;
  entry["seen_ns"] = wait.seen_ns;
  return entry;
}

py::dict group_of(const GroupStatus& group) {
  py::dict entry;
  entry["group"] = group.group;
  entry["name"] = text_of(group.name);
  entry["rank"] = group.rank;
  entry["size"] = group.size;
  entry["nodes"] = group.nodes;
  entry["has_left"] = group.has_left;
  entry["failure"] = text_of(group.failure);
  entry["sequence"] = group.call.sequence;
  entry["call"] = group.call.sequence ? words_of(group.call) : "";
  entry["is_background"] = group.is_background;
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
      "in_background", [] { static thread_local const BackgroundThread here; },
      "From now on this thread runs operations whose callers may do something else meanwhile.");
  py::class_<BlockedThread>(m, "BlockedThread", "While there is one, its thread waits for operations of others.")
      .def(py::init<>());
  m.def(
      "read_status",
      [](const py::buffer& page) {
        const py::buffer_info memory = page.request();
        const StatusOfProcess found = read_status(bytes_of(memory));
        py::list groups;
        for (const GroupStatus& group : found.groups) groups.append(group_of(group));
        py::dict page_of;
        page_of["pid"] = found.pid;
        page_of["groups"] = groups;
        page_of["not_shown"] = found.not_shown;
        page_of["blocked"] = found.blocked;
        page_of["trouble"] = text_of(found.trouble);
        return page_of;
      },
      py::arg("page"), "What a process shows of its groups (node/status.hpp), as a dict.");
}

}  // namespace accdp::bind
