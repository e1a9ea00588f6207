#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/birthplace.hpp"
#include "base/deadline.hpp"
#include "base/hash.hpp"
#include "base/rounding.hpp"
#include "mpi/groups.hpp"
#include "mpi/lines.hpp"
#include "mpi/native.hpp"
#include "mpi/refusals.hpp"
#include "mpi/world.hpp"

namespace accdp::mpi {
namespace {

// What a group that fails waits for messages that are under way: of those to ranks that are late nothing may move, and
// the rest of one that has begun to come is missing only where its sender stands still.
constexpr std::chrono::milliseconds kLeaving{250};
constexpr std::chrono::seconds kComing{2};
constexpr std::chrono::milliseconds kOneGo{100};  // at most between two that are abandoned in one go
constexpr std::chrono::milliseconds kRead{500};   // what a rank that has ended had sent, TCP's second try included
constexpr std::chrono::seconds kBreaks{2};        // the line to a rank, after MPI's connection

/// MPI's counts are ints: callers send what is longer in pieces.
int count_of(std::size_t bytes) {
  if (bytes > INT_MAX) throw MpiError("a message of " + std::to_string(bytes) + " bytes: expected pieces below 2 GiB");
  return static_cast<int>(bytes);
}

/// Pieces of a message; both ends cut alike. Of a known length nearly equal ones; else the first that is not of
/// Wire::kAtOnceBytes is the last, if need be an empty one.
struct Cut {
  std::size_t bytes, pieces = 1, each;

  Cut(std::size_t of_bytes, Wire::Form form) : bytes(of_bytes), each(Wire::kAtOnceBytes) {
    if (form == Wire::Form::kUpTo) {
      pieces = bytes / Wire::kAtOnceBytes + 1;
      return;
    }
    if (form == Wire::Form::kPieces) pieces = std::max<std::size_t>(ceil_div(bytes, Wire::kAtOnceBytes), 1);
    each = whole_lines(ceil_div(bytes, pieces));
    if (each) pieces = std::max<std::size_t>(ceil_div(bytes, each), 1);
  }
  std::size_t begin(std::size_t piece) const { return std::min(bytes, piece * each); }
  std::size_t length(std::size_t piece) const { return begin(piece + 1) - begin(piece); }
};

class MpiWire : public Wire {
 public:
  MpiWire(MPI_Comm comm, std::vector<int> world_ranks) : comm_(comm), world_ranks_(std::move(world_ranks)) {}
  ~MpiWire() override {
    const auto is_open = [](const auto& arrival) { return arrival.second.request != MPI_REQUEST_NULL; };
    // MPI may still write there.
    if (std::any_of(arriving_.begin(), arriving_.end(), is_open))
      static_cast<void>(new std::map<int, Arrival>(std::move(arriving_)));
    if (retired_ && !birthplace_.is_elsewhere()) drop_wire(comm_, awaited_);
  }

  Request isend(ConstBytes data, int to, Tag tag, Form form) override {
    if (!is_initialized()) throw MpiError(kFinalisedTooEarly);
    Request request{.bytes = data.size(), .peer = to, .form = form};
    int refusal = 0;
    {
      const auto lock = safe_turn();
      if (form == Form::kUpTo) request.rest_tag = rest_tag(sent_[{to, tag}]++, tag);
      const Cut cut(data.size(), form);
      begin(request, cut, [&](std::size_t piece, MPI_Request* raw) {
        // Where MPI would crash it is asked at each send, else only that it need not connect to the dead.
        if (can_hide() ? mpi::had_ended(world_ranks_[to]) : has_ended(to)) return false;
        const ConstBytes part = data.subspan(cut.begin(piece), cut.length(piece));
        const int its_tag = piece > 0 && form == Form::kUpTo ? request.rest_tag : tag;
        ACCDP_MPI(MPI_Isend(part.data(), count_of(part.size()), MPI_BYTE, to, its_tag, comm_, raw));
        refusal = take_refusal();
        if (refusal) MPI_Request_free(raw);
        return refusal == 0;
      });
      count(data.size(), tag);
    }
    if (refusal) check_ends(to, refusal);
    return request;
  }

  Request irecv(Bytes data, int from, Tag tag, Form form) override {
    auto lock = safe_turn();
    Request request{.bytes = data.size(), .peer = from, .is_receive = true, .form = form};
    if (form == Form::kUpTo) {
      request.rest_tag = rest_tag(received_[{from, tag}]++, tag);
      request.bytes = 0;
      request.room = data;
      receive_next(request, tag);
      return request;
    }
    const Cut cut(data.size(), form);
    begin(request, cut, [&](std::size_t piece, MPI_Request* raw) {
      const Bytes part = data.subspan(cut.begin(piece), cut.length(piece));
      ACCDP_MPI(MPI_Irecv(part.data(), count_of(part.size()), MPI_BYTE, from, tag, comm_, raw));
      return true;
    });
    return request;
  }

  Request start(const NativeCall& call) override {
    MPI_Request raw;
    auto lock = safe_turn();
    start_native(call, comm_, raw);
    return {
        .raw = pack(raw), .bytes = call.out.size(), .peer = kEverybody, .pending = true, .refusal = take_any_refusal()};
  }

  bool has_native(Datatype type, ReduceOp op) const override {
    return native_type(type) != MPI_DATATYPE_NULL && native_op(type, op) != MPI_OP_NULL;
  }

  bool takes_device_memory() const override { return is_cuda_aware(); }

  bool test(Request& request) override {
    if (!request.pending) return true;
    if (request.is_lost) return false;
    check_ends(kEverybody, std::exchange(request.refusal, 0));
    auto lock = safe_turn();
    while (request.pending) {
      MPI_Request raw = unpack(request.raw);
      MPI_Status status;
      int done = 0;
      const int code = MPI_Test(&raw, &done, &status);
      request.raw = pack(raw);
      if (raw == MPI_REQUEST_NULL) complete_one(request);  // MPI has let go of it, after an error as well
      if (code != MPI_SUCCESS) throw_mpi(code, "MPI_Test", __FILE__, __LINE__);
      if (request.peer == kEverybody) request.refusal = take_any_refusal();
      if (!done) return false;
      check_received(request, status);
    }
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
                     [](const Request& r) { return r.pending && !r.is_lost ? unpack(r.raw) : MPI_REQUEST_NULL; });
      auto lock = safe_turn();
      const int code = MPI_Testsome(static_cast<int>(some.size()), raw, &count, done, statuses);
      const bool some_failed = code == MPI_ERR_IN_STATUS;
      if (code != MPI_SUCCESS && !some_failed) throw_mpi(code, "MPI_Testsome", __FILE__, __LINE__);
      if (count == MPI_UNDEFINED) continue;  // none is pending
      for (int i = 0; i < count; ++i) complete_one(some[done[i]]);
      for (int i = 0; i < count; ++i) {
        if (some_failed && statuses[i].MPI_ERROR != MPI_SUCCESS)
          throw_mpi(statuses[i].MPI_ERROR, "MPI_Testsome", __FILE__, __LINE__);
        check_received(some[done[i]], statuses[i]);
      }
      lock = {};
      for (int i = 0; i < count; ++i)
        if (some[done[i]].pending) test(some[done[i]]);  // a further piece
    }
  }

  bool take(Tag tag, int& from, std::vector<std::byte>& message) override {
    if (!is_initialized()) throw MpiError(kFinalisedTooEarly);
    const std::lock_guard one(arriving_mutex_);
    auto lock = safe_turn();
    Arrival& arrival = arriving_[tag];
    if (arrival.request == MPI_REQUEST_NULL) {
      int found = 0, bytes = 0;
      MPI_Message matched;
      MPI_Status status;
      ACCDP_MPI(MPI_Improbe(MPI_ANY_SOURCE, tag, comm_, &found, &matched, &status));
      if (!found) return false;
      ACCDP_MPI(MPI_Get_count(&status, MPI_BYTE, &bytes));
      arrival.message = std::move(message);  // with its room
      arrival.message.resize(bytes);
      arrival.from = status.MPI_SOURCE;
      ACCDP_MPI(MPI_Imrecv(arrival.message.data(), bytes, MPI_BYTE, &matched, &arrival.request));
    }
    int done = 0;
    ACCDP_MPI(MPI_Test(&arrival.request, &done, MPI_STATUS_IGNORE));
    if (!done) return false;
    message = std::move(arrival.message);
    from = arrival.from;
    if (tag == kFarewell) --awaited_;
    return true;
  }

  void forget(Request& request) noexcept override {
    if (!request.pending || mpi::health() == kUnsafe) return;
    if (const auto lock = turn()) give_up(request);
  }

  void cancel(Request& request) noexcept override {
    if (!request.is_receive || std::exchange(request.is_cancelled, true) || mpi::health() == kUnsafe) return;
    std::vector<std::uint64_t> half_here;
    const auto lock = turn();
    if (!lock) return;
    for (; request.pending; complete_one(request)) {
      MPI_Request raw = unpack(request.raw);
      int done;
      MPI_Cancel(&raw);
      MPI_Test(&raw, &done, MPI_STATUS_IGNORE);
      if (raw != MPI_REQUEST_NULL) half_here.push_back(pack(raw));
    }
    request.further.assign(half_here.rbegin(), half_here.rend());
    if (!half_here.empty()) complete_one(request);  // which takes the first of them
  }

  void abandon(Request& request) noexcept override {
    if (!request.pending) return;
    cancel(request);
    if (request.is_lost || request.form == Form::kUpTo) return forget(request);
    // What a thread abandons in one go has that time together.
    static thread_local Clock::time_point began, ended;
    if (const auto now = Clock::now(); now - ended > kOneGo) began = now;
    for (; request.pending && mpi::health() != kUnsafe; complete_one(request))
      see_off(unpack(request.raw), request, began);
    ended = Clock::now();
  }

  void retire(int farewells) noexcept override {
    awaited_ += farewells;
    retired_ = true;
  }

  bool late_ranks_live() const noexcept override { return mpi::deaths_end_the_job(); }
  void worsen(Health health) noexcept override { mpi::worsen(health); }
  bool has_ended(int rank) const noexcept override { return mpi::has_ended(world_ranks_[rank]); }
  bool can_tell_end_of(int rank) const noexcept override { return mpi::has_line(world_ranks_[rank]); }
  Health health() const noexcept override { return mpi::health(); }

 private:
  /// For a send that UCX has refused: throws unless a rank that it may have been to has ended. UCX may know first, for
  /// some time, which is waited for once.
  void check_ends(int to, int refusal) {
    if (!refusal) return;
    const auto any = [&](auto has) {
      if (to != kEverybody) return has(world_ranks_[to]);
      return std::any_of(world_ranks_.begin(), world_ranks_.end(), has);
    };
    const timespec nap{0, 1'000'000};
    for (const auto until = Clock::now() + kBreaks; any(mpi::has_line); nanosleep(&nap, nullptr)) {
      if (any(mpi::has_ended)) return;
      if (waited_in_vain_ || Clock::now() >= until) break;
    }
    waited_in_vain_ = true;
    const std::string whom = to == kEverybody ? "another rank" : "rank " + std::to_string(to);
    throw PeerDied("UCX refuses to send to " + whom + ": " + text_of_refusal(refusal));
  }
  /// A piece has come.
  void check_received(Request& request, const MPI_Status& status) {
    if (!request.is_receive) return;
    int count = 0;
    ACCDP_MPI(MPI_Get_count(&status, MPI_BYTE, &count));
    const auto bytes = static_cast<std::size_t>(count);
    if (request.form == Form::kUpTo) {
      request.bytes += bytes;
      request.room = request.room.subspan(bytes);
      if (bytes == Wire::kAtOnceBytes) receive_next(request, request.rest_tag);
      return;
    }
    const Cut cut(request.bytes, request.form);
    const std::size_t expected = cut.length(cut.pieces - 1 - (request.pending ? 1 + request.further.size() : 0));
    if (bytes != expected)
      throw MismatchError("rank " + std::to_string(request.peer) + " sent " + std::to_string(bytes) +
                          " bytes, expected " + std::to_string(expected));
  }
  void receive_next(Request& request, int tag) {
    const Bytes part = request.room.first(std::min(request.room.size(), Wire::kAtOnceBytes));
    MPI_Request raw;
    ACCDP_MPI(MPI_Irecv(part.data(), count_of(part.size()), MPI_BYTE, request.peer, tag, comm_, &raw));
    request.raw = pack(raw);
    request.pending = true;
  }
  /// begin_one(piece, raw) begins a piece; false: this one, and so the message, is lost.
  template <class BeginOne>
  void begin(Request& request, const Cut& cut, BeginOne begin_one) {
    try {
      for (std::size_t piece = 0; piece < cut.pieces; ++piece) {
        MPI_Request raw;
        if (!begin_one(piece, &raw)) {
          give_up(request);
          request.pending = request.is_lost = true;
          return;
        }
        if (!std::exchange(request.pending, true))
          request.raw = pack(raw);
        else
          request.further.push_back(pack(raw));
      }
    } catch (...) {
      std::reverse(request.further.begin(), request.further.end());
      give_up(request);
      throw;
    }
    std::reverse(request.further.begin(), request.further.end());
  }
  static void give_up(Request& request) noexcept {
    if (request.is_lost) request.pending = false;
    for (; request.pending; complete_one(request)) {
      MPI_Request raw = unpack(request.raw);
      if (request.is_receive && !request.is_cancelled) MPI_Cancel(&raw);
      MPI_Request_free(&raw);
    }
  }
  void see_off(MPI_Request raw, const Request& request, Clock::time_point began) noexcept {
    const bool is_native = request.peer == kEverybody, may_write = request.is_receive || is_native;
    auto until = began + (may_write ? kComing : kLeaving);
    bool peer_has_ended = false;
    while (true) {
      {
        const auto lock = turn();
        if (!lock) {
          if (may_write) mpi::worsen(kUnsafe);
          return;
        }
        int done;
        MPI_Test(&raw, &done, MPI_STATUS_IGNORE);
        if (raw == MPI_REQUEST_NULL) return;
      }
      const auto now = Clock::now();
      if (!is_native && !peer_has_ended && (peer_has_ended = has_ended(request.peer)))
        until = std::min(until, now + kRead);
      if (now >= until) break;
      const timespec nap{0, 50'000};
      nanosleep(&nap, nullptr);
    }
    const auto lock = turn();
    if (lock && !is_native) MPI_Request_free(&raw);  // which MPI forbids for collectives
    if (may_write && !peer_has_ended) mpi::worsen(kUnsafe);
  }
  /// Later messages' pieces must not come where the rest of this one is awaited: who completes which first is the
  /// caller's choice.
  static int rest_tag(unsigned nth, Tag tag) {
    constexpr int kTags = 16, kUnderWay = 512, kFirst = kData + static_cast<int>(kDataTags);
    static_assert(kData <= kTags && kFirst + kTags * kUnderWay <= 32767, "MPI has tags up to 32767");
    return kFirst + kTags * static_cast<int>(nth % kUnderWay) + tag;
  }
  static std::uint64_t pack(MPI_Request raw) {
    std::uint64_t packed = 0;
    static_assert(sizeof raw <= sizeof packed);
    std::memcpy(&packed, &raw, sizeof raw);
    return packed;
  }
  static MPI_Request unpack(std::uint64_t packed) {
    MPI_Request raw;
    std::memcpy(&raw, &packed, sizeof raw);
    return raw;
  }
  static void complete_one(Request& request) {
    request.pending = !request.further.empty();
    if (!request.pending) return;
    request.raw = request.further.back();
    request.further.pop_back();
  }

  MPI_Comm comm_;
  const std::vector<int> world_ranks_;
  std::atomic<int> awaited_{0};              // farewells to come, once retired; before, less those that came early
  std::atomic<bool> waited_in_vain_{false};  // for a line to break
  bool retired_ = false;
  const Birthplace birthplace_;                              // a forked child has a copy of this, and no part in MPI
  std::map<std::pair<int, int>, unsigned> sent_, received_;  // of kUpTo, which collectives use: by peer and tag
  /// A message of take() that has begun to come: a long one MPI may have to fetch from a rank that is gone.
  struct Arrival {
    MPI_Request request = MPI_REQUEST_NULL;
    int from = -1;
    std::vector<std::byte> message;
  };
  std::mutex arriving_mutex_;
  std::map<int, Arrival> arriving_;  // by tag
};

/// Whether all ranks have come to a communicator with the same group in mind, and none by another thread of theirs.
bool are_alike(MPI_Comm comm, std::uint64_t hash) {
  const std::uint64_t mine[] = {hash, ~hash};
  std::uint64_t least[2] = {};
  const auto lock = safe_turn();
  expose_refusals();
  ACCDP_MPI(MPI_Allreduce(mine, least, 2, MPI_UINT64_T, MPI_MIN, comm));
  return std::equal(mine, mine + 2, least);
}

}  // namespace

std::shared_ptr<Wire> make_wire(const std::vector<int>& world_ranks, const std::string& identity) {
  Hash of_identity;
  for (unsigned char c : identity) of_identity.add(c);
  const std::uint64_t hash = of_identity.value();
  free_dropped_wires();
  // Groups of some of the same ranks may be made at one time. The tag keeps them apart, and where it happens to be the
  // same, which all ranks of both see, another one does. Where some ranks do not come, mpi_world.py ends a process that
  // waits too long.
  constexpr std::uint64_t kTags = 32749;
  MPI_Comm made = create_comm(world_ranks, static_cast<int>(hash % kTags));
  for (std::uint64_t left = hash / kTags; !are_alike(made, hash); left /= kTags) {
    if (left == 0) throw MpiError("groups that threads form at the same time were taken for one another");
    {
      const auto lock = safe_turn();
      ACCDP_MPI(MPI_Comm_free(&made));
    }
    made = create_comm(world_ranks, static_cast<int>(left % kTags));
  }
  add_wire(made);
  return std::make_shared<MpiWire>(made, world_ranks);
}

}  // namespace accdp::mpi
