// Calls that take the arrays themselves. Each does the operation and returns True if its arguments are plain
// (core_arrays.hpp) and right; else it has done nothing and returns False, and accdp_comm/communicator.py looks at them
// closely: it knows more kinds of arrays, and says what is wrong. For small messages, Python's part of a call costs
// more than the message.
#include "bind/core_calls.hpp"

#include <string_view>

#include "base/error.hpp"
#include "base/no_gil.hpp"
#include "bind/core_arrays.hpp"
#include "bind/core_numbers.hpp"
#include "bind/fast_method.hpp"

namespace py = pybind11;

namespace accdp::bind {
namespace {

std::optional<ReduceOp> op_for(Datatype type, py::handle text) {
  Py_ssize_t length = 0;
  const char* name = PyUnicode_CheckExact(text.ptr()) ? PyUnicode_AsUTF8AndSize(text.ptr(), &length) : nullptr;
  if (!name) {
    PyErr_Clear();
    return std::nullopt;
  }
  const std::optional<ReduceOp> op = reduce_op_named({name, static_cast<std::size_t>(length)});
  return op && is_reducible(type, *op) ? op : std::nullopt;
}

/// `out`, or `in` where it is None; nothing if it does not fit.
std::optional<PlainArray> result_for(const PlainArray& in, py::handle out, std::size_t times = 1) {
  if (out.is_none()) return times == 1 ? std::optional(in) : std::nullopt;
  const auto result = plain_array(out, true);
  return result && result->type == in.type && result->data.size() == times * in.data.size() ? result : std::nullopt;
}

template <class Span>
std::vector<Span> equal_parts(Bytes data, int ranks) {
  std::vector<Span> parts;
  parts.reserve(ranks);
  const std::size_t bytes = data.size() / ranks;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(data.subspan(rank * bytes, bytes));
  return parts;
}

bool divides(const PlainArray& x, int ranks) { return x.rows >= 0 && x.rows % ranks == 0; }

/// One block per rank: equal parts of an array whose first dimension can be cut so, or a list of arrays of any counts,
/// all of that datatype. kept: what holds them, though another thread may change the list.
template <class Span>
std::optional<std::vector<Span>> blocks_of(py::handle x, Datatype type, int ranks, bool writable, py::object& kept) {
  if (!PyList_CheckExact(x.ptr()) && !PyTuple_CheckExact(x.ptr())) {
    const auto whole = plain_array(x, writable);
    if (!whole || whole->type != type || !divides(*whole, ranks)) return std::nullopt;
    return equal_parts<Span>(whole->data, ranks);
  }
  const auto arrays = py::reinterpret_steal<py::tuple>(PySequence_Tuple(x.ptr()));
  if (!arrays) throw py::error_already_set();
  kept = arrays;
  if (arrays.size() != std::size_t(ranks)) return std::nullopt;
  std::vector<Span> blocks;
  blocks.reserve(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto block = plain_array(PyTuple_GET_ITEM(arrays.ptr(), rank), writable);
    if (!block || block->type != type) return std::nullopt;
    blocks.push_back(block->data);
  }
  return blocks;
}

bool bcast(Group& g, py::handle x, py::handle root) {
  const int from = rank_in(g, root);
  if (from < 0) return false;
  const auto data = plain_array(x, g.rank() != from);
  if (!data) return false;
  NoGil nogil;
  g.bcast(data->data, data->type, from);
  return true;
}

bool allreduce(Group& g, py::handle x, py::handle op, py::handle out) {
  const auto data = plain_array(x, out.is_none());
  if (!data) return false;
  const auto how = op_for(data->type, op);
  const auto result = result_for(*data, out);
  if (!how || !result) return false;
  NoGil nogil;
  g.allreduce(data->data, result->data, data->type, *how);
  return true;
}

bool reduce(Group& g, py::handle x, py::handle op, py::handle root, py::handle out) {
  const int to = rank_in(g, root);
  if (to < 0) return false;
  const bool receives = g.rank() == to;
  const auto data = plain_array(x, receives && out.is_none());
  if (!data) return false;
  const auto how = op_for(data->type, op);
  const auto result = receives ? result_for(*data, out) : PlainArray{{}, data->type, -1};
  if (!how || !result) return false;
  NoGil nogil;
  g.reduce(data->data, result->data, data->type, *how, to);
  return true;
}

bool allgather(Group& g, py::handle x, py::handle out) {
  const auto data = plain_array(x, false);
  if (!data) return false;
  const auto result = out.is_none() ? std::nullopt : result_for(*data, out, g.size());
  if (!result) return false;
  NoGil nogil;
  g.allgather(data->data, equal_parts<Bytes>(result->data, g.size()), data->type);
  return true;
}

bool gather(Group& g, py::handle x, py::handle root, py::handle out) {
  const int to = rank_in(g, root);
  const auto data = plain_array(x, false);
  if (to < 0 || !data) return false;
  std::vector<Bytes> blocks;
  if (g.rank() == to) {
    const auto result = out.is_none() ? std::nullopt : result_for(*data, out, g.size());
    if (!result) return false;
    blocks = equal_parts<Bytes>(result->data, g.size());
  }
  NoGil nogil;
  g.gather(data->data, blocks, data->type, to);
  return true;
}

bool scatter(Group& g, py::handle x, py::handle out, py::handle root) {
  const int from = rank_in(g, root);
  const auto result = plain_array(out, true);
  if (from < 0 || !result) return false;
  std::vector<ConstBytes> blocks;
  if (g.rank() == from) {
    const auto data = plain_array(x, false);
    if (!data || data->type != result->type || data->data.size() != g.size() * result->data.size()) return false;
    blocks = equal_parts<ConstBytes>(data->data, g.size());
  }
  NoGil nogil;
  g.scatter(blocks, result->data, result->type, from);
  return true;
}

bool reduce_scatter(Group& g, py::handle x, py::handle op, py::handle out) {
  const auto result = plain_array(out, true);
  if (!result) return false;
  py::object kept;
  const auto blocks = blocks_of<ConstBytes>(x, result->type, g.size(), false, kept);
  if (!blocks || (*blocks)[g.rank()].size() != result->data.size()) return false;
  const auto how = op_for(result->type, op);
  if (!how) return false;
  NoGil nogil;
  g.reduce_scatter(*blocks, result->data, result->type, *how);
  return true;
}

bool alltoall(Group& g, py::handle x, py::handle out) {
  const auto data = plain_array(x, false);
  if (!data || !divides(*data, g.size())) return false;
  const auto result = out.is_none() ? std::nullopt : result_for(*data, out);
  if (!result) return false;
  NoGil nogil;
  g.alltoall(equal_parts<ConstBytes>(data->data, g.size()), equal_parts<Bytes>(result->data, g.size()), data->type);
  return true;
}

bool send(Group& g, py::handle x, py::handle dst, py::handle tag) {
  const int to = rank_in(g, dst);
  const long long label = number(tag, kMostTag);
  const auto data = plain_array(x, false);
  if (to < 0 || label < 0 || !data) return false;
  NoGil nogil;
  g.send_now(data->data, to, label);
  return true;
}

py::object address_of_plain(py::handle x, bool writable) {
  const auto array = plain_array(x, writable);
  if (!array) return py::none();
  return py::make_tuple(reinterpret_cast<std::uintptr_t>(array->data.data()), array->count(), array->type,
                        element_bytes(array->type));
}

/// The rank that sent; -1 for "done nothing".
int recv(Group& g, py::handle x, py::handle src, py::handle tag) {
  const int from = rank_in(g, src);
  const long long label = number(tag, kMostTag);
  const auto data = plain_array(x, true);
  if (from < 0 || label < 0 || !data) return -1;
  NoGil nogil;
  return g.receive_now(data->data, from, label);
}

}  // namespace

void bind_calls(py::module_& m, py::class_<Group, std::shared_ptr<Group>>& group) {
  m.def(
      "plain_array", &address_of_plain, py::arg("x"), py::arg("writable"),
      "Address, elements, datatype and bytes per element of an array that needs no explaining (core_arrays.hpp); None "
      "for any other.");
  define_fast<&bcast>(group, "try_bcast");
  define_fast<&allreduce>(group, "try_allreduce");
  define_fast<&reduce>(group, "try_reduce");
  define_fast<&allgather>(group, "try_allgather");
  define_fast<&gather>(group, "try_gather");
  define_fast<&scatter>(group, "try_scatter");
  define_fast<&reduce_scatter>(group, "try_reduce_scatter");
  define_fast<&alltoall>(group, "try_alltoall");
  define_fast<&send>(group, "try_send");
  define_fast<&recv>(group, "try_recv");
}

}  // namespace accdp::bind
