// Sends and receives under way, as Python sees them. The buffer of one belongs to its message until that is done: who
// lets go of a work that is not leaves its array to the list below.
#include "bind/core_messages.hpp"

#include <limits>
#include <map>
#include <vector>

#include "base/error.hpp"
#include "base/no_gil.hpp"
#include "bind/core_arrays.hpp"
#include "bind/core_numbers.hpp"
#include "bind/fast_method.hpp"

namespace py = pybind11;

namespace accdp::bind {
namespace {

/// A message that nobody asks about any more, with what it needs. Python's group too: its messages end before it does,
/// and the process leaves it in order.
struct Orphan {
  py::object group;
  MessageHandle message;
  py::object array;
};

/// Guarded by the GIL, and never destroyed: when the process ends, a message may still be on its way.
std::vector<Orphan>& orphans() {
  static auto* const list = new std::vector<Orphan>();
  return *list;
}

}  // namespace

void sweep_messages() {
  std::vector<Orphan>& list = orphans();
  if (list.empty()) return;
  std::vector<Orphan> done;
  for (std::size_t i = 0; i < list.size();) {
    if (!list[i].message->done) {
      ++i;
      continue;
    }
    done.push_back(std::move(list[i]));
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // Outside the list: what ends here may run code of the user's, which may come here again.
  done.clear();
}

namespace {

/// A send or a receive, done or under way.
class MessageWork {
 public:
  /// array: lives until it is done. then: called, if not None, before a caller first hears that it went well.
  MessageWork(const Shared<Group>& group, MessageHandle message, py::object array, py::object then)
      : of_python_(py::reinterpret_borrow<py::object>(group.object)),
        group_(group.held),
        message_(std::move(message)),
        array_(std::move(array)),
        then_(std::move(then)) {}
  MessageWork() = default;  ///< of a send that is done
  MessageWork(const MessageWork&) = delete;
  ~MessageWork() {
    sweep_messages();
    if (message_ && !message_->done)
      orphans().push_back({std::move(of_python_), std::move(message_), std::move(array_)});
  }

  bool is_completed() {
    if (!message_ || message_->done) return true;
    NoGil nogil;
    return group_->post_office().test(message_);
  }

  /// Of one that is done: the rank that sent, of a receive.
  py::object result() {
    if (message_ && !message_->error && !then_.is_none()) {
      const py::object then = then_;
      then();
      then_ = py::none();  // only now: where it failed, whoever asks again must not hear that all is well
    }
    const py::object array = std::move(array_);
    if (!message_) return py::none();
    if (message_->error) {
      group_->post_office().hear(*message_);
      std::rethrow_exception(message_->error);
    }
    return message_->is_send ? py::object(py::none()) : py::object(py::int_(message_->peer));
  }

  const std::shared_ptr<Group>& group() const { return group_; }
  const MessageHandle& message() const { return message_; }

 private:
  py::object of_python_;  // the group's, which the process's end knows it by
  std::shared_ptr<Group> group_;
  MessageHandle message_;
  py::object array_, then_;
};

/// -1 for None.
double limit_of(const py::object& timeout_s) {
  if (timeout_s.is_none()) return -1;
  const double seconds = PyFloat_AsDouble(timeout_s.ptr());
  const bool is_number = !PyErr_Occurred(), is_huge = PyErr_ExceptionMatches(PyExc_OverflowError);
  if (!is_number && !PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();  // Ctrl-C
  PyErr_Clear();
  if (is_number && seconds >= 0) return seconds;
  if (is_huge && timeout_s > py::int_(0)) return std::numeric_limits<double>::infinity();
  throw UsageError("timeout_s: expected seconds >= 0 or None, got " +
                   (is_huge ? "an integer of many digits" : std::string(py::repr(timeout_s))));
}

[[noreturn]] void give_up_waiting(Group& group, const MessageHandle& message, double limit_s, std::size_t left) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g s", limit_s);
  std::string text = "rank " + std::to_string(group.rank()) + " of " + std::to_string(group.size()) + ", group " +
                     group.name() + ": " + group.post_office().describe(*message) + " is not done after " + seconds +
                     " (timeout_s)";
  if (left > 1) text += ", nor are " + std::to_string(left - 1) + " others";
  throw PeerTimeout(text + "; still under way");
}

py::object wait(MessageWork& work, const py::object& timeout_s) {
  const double limit_s = limit_of(timeout_s);
  if (work.message() && !work.message()->done) {
    bool done;
    {
      NoGil nogil;
      done = work.group()->wait_all({&work.message(), 1}, limit_s);
    }
    if (!done) give_up_waiting(*work.group(), work.message(), limit_s, 1);
  }
  return work.result();
}

py::list works_of(const py::object& given) {
  py::list works;
  if (!PyObject_HasAttrString(given.ptr(), "__iter__"))
    throw UsageError("works: expected a list of works, got " + std::string(py::repr(given)));
  for (py::handle item : given) {
    if (!py::isinstance<MessageWork>(item))
      throw UsageError("works[" + std::to_string(works.size()) + "]: expected a work of isend() or irecv(), got " +
                       std::string(py::repr(item)));
    works.append(item);
  }
  return works;
}

/// Waits for all, those of one group together; then raises the first error there was.
py::list waitall(const py::object& given, const py::object& timeout_s) {
  const double limit_s = limit_of(timeout_s);
  const Deadline end(limit_s < 0 ? 0 : limit_s);
  const py::list works = works_of(given);
  std::map<Group*, std::vector<MessageHandle>> open;
  for (py::handle item : works) {
    auto& work = py::cast<MessageWork&>(item);
    if (work.message() && !work.message()->done) open[work.group().get()].push_back(work.message());
  }
  for (auto& [group, messages] : open) {
    bool done;
    {
      NoGil nogil;
      const double left = std::chrono::duration<double>(end.at() - Clock::now()).count();
      done = group->wait_all(messages, limit_s < 0 ? -1 : std::max(0.0, left));
    }
    if (done) continue;
    std::erase_if(messages, [](const MessageHandle& m) { return m->done.load(); });
    if (!messages.empty()) give_up_waiting(*group, messages.front(), limit_s, messages.size());
  }
  py::list results(works.size());
  std::exception_ptr first;
  for (std::size_t i = 0; i < works.size(); ++i) {
    try {
      results[i] = py::cast<MessageWork&>(works[i]).result();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
  return results;
}

/// The work of every send that was done at once: they have nothing of their own to tell.
py::object done_work() {
  static PyObject* const done = py::cast(std::make_unique<MessageWork>()).release().ptr();
  return py::reinterpret_borrow<py::object>(done);
}

py::object start_send(const Shared<Group>& group, ConstBytes data, int to, std::int64_t tag, py::object array) {
  MessageHandle message;
  {
    NoGil nogil;
    message = group.held->start_send(data, to, tag);
  }
  if (!message) return done_work();
  return py::cast(std::make_unique<MessageWork>(group, std::move(message), std::move(array), py::none()));
}

std::unique_ptr<MessageWork> start_receive(const Shared<Group>& group, Bytes data, int from, std::int64_t tag,
                                           py::object array, py::object then) {
  MessageHandle message;
  {
    NoGil nogil;
    message = group.held->start_receive(data, from, tag);
  }
  return std::make_unique<MessageWork>(group, std::move(message), std::move(array), std::move(then));
}

/// As the calls in core_calls.cpp, of which None says that nothing was done.
py::object try_isend(const Shared<Group>& group, py::handle x, py::handle dst, py::handle tag) {
  const int to = rank_in(*group.held, dst);
  const long long label = number(tag, kMostTag);
  const auto data = plain_array(x, false);
  if (to < 0 || label < 0 || !data) return py::none();
  return start_send(group, data->data, to, label, py::reinterpret_borrow<py::object>(x));
}

py::object try_irecv(const Shared<Group>& group, py::handle x, py::handle src, py::handle tag) {
  const int from = rank_in(*group.held, src);
  const long long label = number(tag, kMostTag);
  const auto data = plain_array(x, true);
  if (from < 0 || label < 0 || !data) return py::none();
  return py::cast(start_receive(group, data->data, from, label, py::reinterpret_borrow<py::object>(x), py::none()));
}

Bytes span_of(std::uintptr_t ptr, std::size_t count, Datatype type) {
  return {reinterpret_cast<std::byte*>(ptr), count * element_bytes(type)};
}

}  // namespace

void bind_messages(py::module_& m, py::class_<Group, std::shared_ptr<Group>>& group) {
  using namespace py::literals;
  py::class_<MessageWork>(m, "MessageWork",
                          "A send or a receive under way: Communicator.isend(), Communicator.irecv().\n\n"
                          "Its array must not be changed (send) or used (receive) before it is done, and is kept alive "
                          "until then.\nA work that is dropped before goes on until it is done.")
      .def("is_completed", &MessageWork::is_completed,
           "Whether it has ended, well or not. Moves what can be moved at once.")
      .def(
          "test",
          [](MessageWork& work) {
            if (!work.is_completed()) return false;
            work.result();
            return true;
          },
          "Whether it is done; raises what it failed with, as wait() does. Moves what can be moved at once.")
      .def("wait", &wait, "timeout_s"_a = py::none(),
           "Return when it is done: of a receive the rank that sent, of a send None. Raises what it failed with:\n"
           "MismatchError (another size was sent), PeerTimeout or PeerDied.\n\n"
           "timeout_s: None waits as long as the communicator's operations may take, and one that is not done then has "
           "failed.\nA number of seconds: PeerTimeout after them, and the work is still under way.");
  m.def("waitall", &waitall, "works"_a, "timeout_s"_a = py::none());
  define_fast<&try_isend>(group, "try_isend");
  define_fast<&try_irecv>(group, "try_irecv");
  group
      .def(
          "isend",
          [](const py::object& self, std::uintptr_t ptr, std::size_t count, Datatype type, int dst, std::int64_t tag,
             py::object array) {
            const auto group = py::cast<std::shared_ptr<Group>>(self);
            return start_send({group, self}, span_of(ptr, count, type), dst, tag, std::move(array));
          },
          "ptr"_a, "count"_a, "dtype"_a, "dst"_a, "tag"_a, "array"_a, "Keeps `array` alive until it is done.")
      .def(
          "irecv",
          [](const py::object& self, std::uintptr_t ptr, std::size_t count, Datatype type, int src, std::int64_t tag,
             py::object array, py::object then) {
            const auto group = py::cast<std::shared_ptr<Group>>(self);
            return start_receive({group, self}, span_of(ptr, count, type), src, tag, std::move(array), std::move(then));
          },
          "ptr"_a, "count"_a, "dtype"_a, "src"_a, "tag"_a, "array"_a, "then"_a = py::none(),
          "Keeps `array` alive until it is done, and calls `then` in the wait() or test() that first tells so.")
      .def(
          "takes_device_memory",
          [](Group& g, std::size_t bytes, int peer) { return g.post_office().takes_device_memory(bytes, peer); },
          "bytes"_a, "peer"_a, "Whether isend and irecv take an address on a device. peer: -1 is any rank.")
      .def(
          "settle",
          [](Group& g, double timeout_s) {
            const Sweep after;
            const NoGil nogil;
            g.settle(timeout_s);
          },
          "timeout_s"_a = -1.0);
}

}  // namespace accdp::bind
