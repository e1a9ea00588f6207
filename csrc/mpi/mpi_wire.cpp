#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>

#include "mpi/native.hpp"
#include "mpi/world.hpp"

namespace accdp::mpi {
namespace {

/// MPI's counts are ints: callers send what is longer in pieces.
int count_of(std::size_t bytes) {
  if (bytes > INT_MAX) throw MpiError("a message of " + std::to_string(bytes) + " bytes: expected pieces below 2 GiB");
  return static_cast<int>(bytes);
}

class MpiWire : public Wire {
 public:
  explicit MpiWire(MPI_Comm comm) : comm_(comm) {}
  ~MpiWire() override {
    if (retired_) drop_wire(comm_, awaited_);
  }

  Request isend(ConstBytes data, int to, Tag tag) override {
    if (!is_initialized()) throw MpiError("MPI was finalised before the group was closed");
    MPI_Request raw;
    auto lock = turn();
    ACCDP_MPI(MPI_Isend(data.data(), count_of(data.size()), MPI_BYTE, to, tag, comm_, &raw));
    count(data.size(), tag);
    return keep(raw, {0, data.size(), to, true, false});
  }

  Request irecv(Bytes data, int from, Tag tag, bool exact) override {
    MPI_Request raw;
    auto lock = turn();
    ACCDP_MPI(MPI_Irecv(data.data(), count_of(data.size()), MPI_BYTE, from, tag, comm_, &raw));
    return keep(raw, {0, data.size(), from, true, true, exact});
  }

  Request start(const NativeCall& call) override {
    MPI_Request raw;
    auto lock = turn();
    start_native(call, comm_, raw);
    return keep(raw, {0, call.out.size(), std::max(call.root, 0), true, false});
  }

  bool has_native(Datatype type, ReduceOp op) const override {
    return native_type(type) != MPI_DATATYPE_NULL && native_op(type, op) != MPI_OP_NULL;
  }

  bool takes_device_memory() const override { return is_cuda_aware(); }

  bool test(Request& request) override {
    if (!request.pending) return true;
    MPI_Request raw = unpack(request);
    MPI_Status status;
    int done = 0;
    auto lock = turn();
    const int code = MPI_Test(&raw, &done, &status);
    pack(request, raw);
    if (raw == MPI_REQUEST_NULL) request.pending = false;  // MPI has let go of it, after an error as well
    if (code != MPI_SUCCESS) throw_mpi(code, "MPI_Test", __FILE__, __LINE__);
    if (!done) return false;
    request.pending = false;
    check_received(request, status);
    return true;
  }

  void test_some(std::span<Request> requests) override {
    constexpr std::size_t kAtOnce = 16;
    for (std::size_t at = 0; at < requests.size(); at += kAtOnce) {
      const std::span<Request> some = requests.subspan(at, std::min(kAtOnce, requests.size() - at));
      MPI_Request raw[kAtOnce];
      MPI_Status statuses[kAtOnce];
      int done[kAtOnce], count = 0;
      std::transform(some.begin(), some.end(), raw,
                     [](const Request& request) { return request.pending ? unpack(request) : MPI_REQUEST_NULL; });
      auto lock = turn();
      const int code = MPI_Testsome(static_cast<int>(some.size()), raw, &count, done, statuses);
      const bool some_failed = code == MPI_ERR_IN_STATUS;
      if (code != MPI_SUCCESS && !some_failed) throw_mpi(code, "MPI_Testsome", __FILE__, __LINE__);
      if (count == MPI_UNDEFINED) continue;  // none is pending
      for (int i = 0; i < count; ++i) some[done[i]].pending = false;
      for (int i = 0; i < count; ++i) {
        if (some_failed && statuses[i].MPI_ERROR != MPI_SUCCESS)
          throw_mpi(statuses[i].MPI_ERROR, "MPI_Testsome", __FILE__, __LINE__);
        check_received(some[done[i]], statuses[i]);
      }
    }
  }

  bool take(Tag tag, int& from, std::vector<std::byte>& message) override {
    int found = 0, bytes = 0;
    MPI_Message matched;
    MPI_Status status;
    auto lock = turn();
    ACCDP_MPI(MPI_Improbe(MPI_ANY_SOURCE, tag, comm_, &found, &matched, &status));
    if (!found) return false;
    ACCDP_MPI(MPI_Get_count(&status, MPI_BYTE, &bytes));
    message.resize(bytes);
    from = status.MPI_SOURCE;
    ACCDP_MPI(MPI_Mrecv(message.data(), bytes, MPI_BYTE, &matched, MPI_STATUS_IGNORE));
    if (tag == kFarewell) --awaited_;
    return true;
  }

  void abandon(Request& request) noexcept override {
    if (!request.pending) return;
    request.pending = false;
    MPI_Request raw = unpack(request);
    auto lock = turn();
    if (request.is_receive) MPI_Cancel(&raw);
    MPI_Request_free(&raw);
  }

  void retire(int farewells) noexcept override {
    awaited_ += farewells;
    retired_ = true;
  }

  bool late_ranks_live() const noexcept override { return mpi::deaths_end_the_job(); }
  void worsen(Health health) noexcept override { mpi::worsen(health); }
  Health health() const noexcept override { return mpi::health(); }

 private:
  static void check_received(Request& request, const MPI_Status& status) {
    if (!request.is_receive) return;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (request.exact && static_cast<std::size_t>(bytes) != request.bytes)
      throw MismatchError("rank " + std::to_string(request.peer) + " sent " + std::to_string(bytes) +
                          " bytes, expected " + std::to_string(request.bytes));
    request.bytes = bytes;
  }
  static void pack(Request& request, MPI_Request raw) {
    static_assert(sizeof raw <= sizeof request.raw);
    std::memcpy(&request.raw, &raw, sizeof raw);
  }
  static MPI_Request unpack(const Request& request) {
    MPI_Request raw;
    std::memcpy(&raw, &request.raw, sizeof raw);
    return raw;
  }
  static Request keep(MPI_Request raw, Request request) {
    pack(request, raw);
    return request;
  }

  MPI_Comm comm_;
  std::atomic<int> awaited_{0};  // farewells to come, once retired; before, less those that came early
  bool retired_ = false;
};

}  // namespace

std::shared_ptr<Wire> make_wire(const std::vector<int>& world_ranks, const std::string& name) {
  // Groups may be made by disjoint sets of ranks at one time; the tag keeps overlapping ones apart.
  std::uint32_t hash = 2166136261u;
  for (unsigned char c : name) hash = (hash ^ c) * 16777619u;
  free_dropped_wires();
  MPI_Group all, some;
  const MPI_Comm world = world_comm();
  MPI_Comm made = MPI_COMM_NULL;
  // Also while MPI waits for the others, because it has no such call that returns at once: where it was initialised for
  // one thread at a time, this rank's other groups rest meanwhile. mpi_world.py ends a process that waits too long.
  auto lock = turn();
  ACCDP_MPI(MPI_Comm_group(world, &all));
  ACCDP_MPI(MPI_Group_incl(all, static_cast<int>(world_ranks.size()), world_ranks.data(), &some));
  const int code = MPI_Comm_create_group(world, some, static_cast<int>(hash % 32768), &made);
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  ACCDP_MPI(code);
  ACCDP_MPI(MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN));
  if (lock) lock.unlock();  // of the list of wires the lock comes first
  add_wire(made);
  return std::make_shared<MpiWire>(made);
}

}  // namespace accdp::mpi
