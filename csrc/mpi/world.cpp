#include "mpi/world.hpp"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <limits>
#include <utility>

#include "base/deadline.hpp"
#include "mpi/launcher.hpp"
#include "mpi/lines.hpp"

namespace accdp::mpi {
namespace {

struct State {
  MPI_Comm world = MPI_COMM_NULL;  // our duplicate, once all ranks have joined; errors are returned, not fatal
  bool ours = false;               // we called MPI_Init_thread
  // For the end: whoever has given up an exchange is out of step with others' collectives over `world`.
  MPI_Comm parting = MPI_COMM_NULL;
  // What joining has come to: `joining` belongs to a duplication, the sum of `ours` over all ranks, a duplication.
  enum { kOutside, kDuplicating, kCounting, kPreparing, kInside } stage = kOutside;
  MPI_Comm duplicate = MPI_COMM_NULL;
  MPI_Request joining = MPI_REQUEST_NULL;
  int mine = 0, owners = 0;   // ranks in which we called MPI_Init_thread
  bool has_met = false;       // this rank has said in finalize(), or in MPI_Finalize, that it leaves
  int at_end = 0, worst = 0;  // Wire::Health of this rank as it says so, and of all ranks
  bool one_at_a_time = false;
  std::atomic<Wire::Health> health{Wire::kWell};
  std::atomic<bool> deaths_end_the_job{false};
  std::atomic<bool> is_ending{false};  // somebody else's MPI_Finalize has begun: nothing is begun any more
  std::atomic<bool> is_over{false};    // and MPI is not called any more
  std::atomic<int> inside{0};          // threads that are in a call of MPI's, where somebody else ends it
  std::mutex mutex;
  std::mutex wires_mutex;
  struct WireComm {
    MPI_Comm comm;
    bool is_dropped = false;
    int farewells = 0;  // to come, once dropped
  };
  std::vector<WireComm> wires;
};
State& state() {
  static State instance;
  return instance;
}

bool finalized() {
  int yes = 0;
  MPI_Finalized(&yes);
  return yes != 0;
}

/// Whether somebody else (mpi4py) calls MPI_Finalize in some ranks, and we in the others.
bool is_mixed() { return state().owners > 0 && state().owners < world_size(); }

// From ranks that close a group and leave at about the same time.
constexpr std::chrono::milliseconds kFarewellsTake{200};
// At most, for calls of MPI's that other threads are in; some wait for other ranks.
constexpr std::chrono::seconds kOthersLeave{1};
constexpr std::chrono::milliseconds kGivingUpTakes{400};  // by threads of ours, once they hear of it

/// What this rank has sent may still be in MPI's hands, and nothing else drives it any more.
void let_mpi_move() noexcept {
  const timespec nap{0, 100'000};
  for (const auto until = Clock::now() + kFarewellsTake; Clock::now() < until; nanosleep(&nap, nullptr)) {
    int found;
    const auto lock = turn();
    if (!lock || MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, state().world, &found, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      return;
  }
}

void await_farewells() {
  const auto awaits = [] {
    const std::lock_guard lock(state().wires_mutex);
    return std::ranges::any_of(state().wires, [](const State::WireComm& wire) { return wire.is_dropped; });
  };
  free_dropped_wires();
  for (const auto until = Clock::now() + kFarewellsTake; awaits() && Clock::now() < until; free_dropped_wires()) {
    const timespec nap{0, 100'000};
    nanosleep(&nap, nullptr);
  }
}

bool has_open_wires() {
  const std::lock_guard lock(state().wires_mutex);
  return std::ranges::any_of(state().wires, [](const State::WireComm& wire) { return !wire.is_dropped; });
}

/// Ranks of somebody else and of ours begin alike, whatever they go on with.
int begin_to_part(MPI_Request* request) {
  State& s = state();
  s.at_end = s.health;
  return MPI_Iallreduce(&s.at_end, &s.worst, 1, MPI_INT, MPI_MAX, s.parting, request);
}

[[noreturn]] void throw_ended(const char* what) {
  throw PeerDied("another MPI rank ended during " + std::string(what));
}

/// MPI_Finalize begins with this where somebody else calls it. Ranks that leave MPI to us meet in finalize(), those of
/// somebody else here: else each kind would wait for the other without end.
int leave_in_finalize(MPI_Comm, int, void*, void*) {
  State& s = state();
  if (is_mixed() && !std::exchange(s.has_met, true)) {
    MPI_Request request;
    if (const int code = begin_to_part(&request)) return code;
    if (const int code = MPI_Wait(&request, MPI_STATUS_IGNORE)) return code;
  }
  if (s.ours) return MPI_SUCCESS;  // finalize() reads farewells itself, and no thread of ours is within MPI then
  if (s.health == Wire::kWell) await_farewells();
  // Groups that the caller has not closed have threads that move messages: these hear of it, give up what is under way
  // while MPI still can, and then stay out.
  const timespec nap{0, 100'000};
  s.is_ending = true;
  if (has_open_wires())
    for (const auto until = Clock::now() + kGivingUpTakes; Clock::now() < until;) nanosleep(&nap, nullptr);
  s.is_over = true;
  for (const auto until = Clock::now() + kOthersLeave; s.inside > 0 && Clock::now() < until;) nanosleep(&nap, nullptr);
  return MPI_SUCCESS;
}

void call_in_finalize(MPI_Comm_delete_attr_function* call) {
  int key;
  ACCDP_MPI(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, call, &key, nullptr));
  ACCDP_MPI(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr));
  ACCDP_MPI(MPI_Comm_free_keyval(&key));
}

/// What is no longer is on its way whole: longer messages MPI fetches out of the memory of their senders, which these
/// may have given up with the group.
constexpr int kEagerBytes = 4096;

struct Leftovers {
  int farewells = 0;
  bool all_read = true;  ///< there was no message that had better not be fetched
};

/// Reads what nobody waits for in a group that this rank has left, farewells of those that closed it later above all:
/// where nobody does UCX warns of each at the end.
Leftovers read_what_is_left(MPI_Comm comm) {
  Leftovers left;
  std::vector<std::byte> message;
  while (true) {
    int found = 0, bytes = 0;
    MPI_Status status;
    MPI_Message matched;  // no other thread can take it before us
    ACCDP_MPI(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, &matched, &status));
    if (!found) return left;
    ACCDP_MPI(MPI_Get_count(&status, MPI_BYTE, &bytes));
    if (bytes > kEagerBytes) {
      left.all_read = false;
      return left;
    }
    message.resize(bytes);
    ACCDP_MPI(MPI_Mrecv(message.data(), bytes, MPI_BYTE, &matched, MPI_STATUS_IGNORE));
    left.farewells += status.MPI_TAG == Wire::kFarewell;
  }
}

}  // namespace

Turn& Turn::operator=(Turn&& other) noexcept {
  end();
  hiding_ = std::exchange(other.hiding_, nullptr);
  alone_ = std::move(other.alone_);
  return *this;
}

void Turn::end() noexcept {
  if (Hiding* const hiding = std::exchange(hiding_, nullptr)) {
    end_hiding(*hiding);
    if (!state().ours) --state().inside;
  }
  if (alone_.owns_lock()) alone_.unlock();
}

Turn turn() {
  State& s = state();
  Turn made;
  if (s.one_at_a_time) made.alone_ = std::unique_lock(s.mutex);
  if (!s.ours) ++s.inside;  // before the look: leave_in_finalize() says that it is over, and waits for those inside
  made.hiding_ = &begin_hiding();
  if (s.is_over) made.end();
  return made;
}

void check_safe() {
  if (health() == Wire::kUnsafe) throw MpiError(Wire::kUnsafeMeans);
}

Turn safe_turn() {
  check_safe();
  Turn made = turn();
  if (!made || state().is_ending) throw MpiError(kFinalisedTooEarly);
  return made;
}

void complete(MPI_Request& request, const Deadline& deadline, const char* what, bool of_all) {
  constexpr int kBetweenLooks = 100;
  for (std::uint64_t polls = 0;; ++polls) {  // a rank may be days ahead of the others
    int done = 0;
    bool is_refused;
    {
      auto lock = safe_turn();
      ACCDP_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
      is_refused = of_all && take_any_refusal() != 0;
    }
    if (done) return;
    if (is_refused) throw_ended(what);
    if (polls < 1000) continue;
    if (of_all && polls % kBetweenLooks == 0 && has_any_ended()) throw_ended(what);
    timespec nap{0, 100'000};
    nanosleep(&nap, nullptr);
    check_interrupt();
    if (deadline.passed()) {
      worsen(Wire::kGroupFailed);
      throw PeerTimeout("Timed out (timeout) waiting for other MPI ranks in " + std::string(what));
    }
  }
}

MPI_Comm world_comm() {
  if (state().world == MPI_COMM_NULL)
    throw UsageError("MPI is not initialised: expected calls of init() and join() before");
  return state().world;
}

void add_wire(MPI_Comm comm) {
  const std::lock_guard lock(state().wires_mutex);
  state().wires.push_back({comm});
}

void drop_wire(MPI_Comm comm, int farewells) noexcept {
  {
    const std::lock_guard lock(state().wires_mutex);
    for (State::WireComm& wire : state().wires)
      if (wire.comm == comm) wire = {comm, true, farewells};
  }
  free_dropped_wires();
}

void free_dropped_wires() noexcept {
  const std::lock_guard lock(state().wires_mutex);
  if (!is_initialized() || health() == Wire::kUnsafe) return;
  const auto one_at_a_time = turn();
  if (!one_at_a_time) return;
  std::erase_if(state().wires, [](State::WireComm& wire) {
    if (!wire.is_dropped) return false;
    try {
      const Leftovers left = read_what_is_left(wire.comm);
      wire.farewells -= left.farewells;
      wire.is_dropped = left.all_read;
      if (!left.all_read || wire.farewells > 0) return false;
      ACCDP_MPI(MPI_Comm_free(&wire.comm));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "accdp: while giving back a communicator: %s\n", error.what());
      wire.is_dropped = false;  // it stays as it is, as does one with a message that nobody may fetch
      return false;
    }
    return true;
  });
}

int held_wires() {
  const std::lock_guard lock(state().wires_mutex);
  return static_cast<int>(state().wires.size());
}

bool is_initialized() {
  int yes = 0;
  MPI_Initialized(&yes);
  return yes && !finalized();
}

std::string thread_level() {
  int level = MPI_THREAD_SINGLE;
  ACCDP_MPI(MPI_Query_thread(&level));
  return level == MPI_THREAD_MULTIPLE     ? "multiple"
         : level == MPI_THREAD_SERIALIZED ? "serialized"
         : level == MPI_THREAD_FUNNELED   ? "funneled"
                                          : "single";
}

void init() {
  if (finalized())
    throw UsageError("MPI was finalised in this process already: expected no MPI_Finalize before the end");
  int level = MPI_THREAD_SINGLE;
  if (!is_initialized()) {
    ACCDP_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level));
    state().ours = true;
    // By one of which MPI tells errors of calls without a communicator, such as MPI_Test, since MPI 4 by the first
    // (Intel MPI still by the other); as they are, they end the process.
    for (MPI_Comm comm : {MPI_COMM_SELF, MPI_COMM_WORLD}) ACCDP_MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  }
  ACCDP_MPI(MPI_Query_thread(&level));
  if (level < MPI_THREAD_SERIALIZED)
    throw UsageError("MPI was initialised with thread level " + thread_level() + ": expected multiple or serialized");
  state().one_at_a_time = level < MPI_THREAD_MULTIPLE;
}

bool join() {
  State& s = state();
  const auto lock = safe_turn();
  if (s.stage == State::kOutside) {
    ACCDP_MPI(MPI_Comm_idup(MPI_COMM_WORLD, &s.duplicate, &s.joining));
    s.stage = State::kDuplicating;
  }
  int done = 0;
  if (s.stage != State::kInside) ACCDP_MPI(MPI_Test(&s.joining, &done, MPI_STATUS_IGNORE));
  if (done && s.stage == State::kDuplicating) {
    ACCDP_MPI(MPI_Comm_set_errhandler(s.duplicate, MPI_ERRORS_RETURN));
    s.mine = s.ours;
    ACCDP_MPI(MPI_Iallreduce(&s.mine, &s.owners, 1, MPI_INT, MPI_SUM, s.duplicate, &s.joining));
    s.stage = State::kCounting;
  } else if (done && s.stage == State::kCounting) {
    ACCDP_MPI(MPI_Comm_idup(s.duplicate, &s.parting, &s.joining));
    s.stage = State::kPreparing;
  } else if (done) {
    s.world = s.duplicate;
    s.stage = State::kInside;
    if (s.owners < world_size()) call_in_finalize(leave_in_finalize);
  }
  return s.stage == State::kInside;
}

int world_rank() {
  int rank;
  ACCDP_MPI(MPI_Comm_rank(world_comm(), &rank));
  return rank;
}

int world_size() {
  int size;
  ACCDP_MPI(MPI_Comm_size(world_comm(), &size));
  return size;
}

void set_deaths_end_the_job(bool they_do) noexcept { state().deaths_end_the_job = they_do; }
bool deaths_end_the_job() noexcept { return state().deaths_end_the_job; }

void worsen(Wire::Health health) noexcept {
  Wire::Health now = state().health;
  while (now < health && !state().health.compare_exchange_weak(now, health)) {
  }
}

Wire::Health health() noexcept { return state().health; }

namespace {

/// Waits until all ranks have come to their end; whether this one may then call MPI_Finalize.
bool meet_at_end(double timeout_s, double after_failure_s, bool leave_open, int pmi_fd) {
  State& s = state();
  const bool others_finalize = s.stage == State::kInside && is_mixed();
  const bool has_failed = s.health != Wire::kWell;
  // Nobody waits for those who may be dead, unless the launcher ends all ranks with them.
  if (has_failed && (s.health != Wire::kGroupFailed || !s.deaths_end_the_job || others_finalize)) return false;
  if (s.stage != State::kOutside && s.stage != State::kInside) return false;  // some ranks have never joined
  if (s.stage == State::kInside) {
    if (has_any_ended()) {
      let_mpi_move();
      return false;
    }
    // MPI_Finalize waits for all ranks and cannot be interrupted, so they meet here first.
    MPI_Request request;
    bool is_refused;
    s.has_met = true;
    {
      auto lock = turn();
      if (const int code = begin_to_part(&request)) throw_mpi(code, "MPI_Iallreduce", __FILE__, __LINE__);
      is_refused = take_any_refusal() != 0;
    }
    const double longest = std::numeric_limits<double>::infinity();
    const double limit = others_finalize ? longest : has_failed ? after_failure_s : timeout_s;
    try {
      if (is_refused) throw_ended("MPI_Finalize");
      complete(request, Deadline(limit), "MPI_Finalize", true);
    } catch (const PeerDied&) {
      let_mpi_move();
      return false;
    } catch (const PeerTimeout&) {
      if (has_failed)
        std::fprintf(
            stderr,
            "accdp: rank %d leaves MPI after a failure; others have not come to their end within %g s, and the "
            "launcher may end them\n",
            world_rank(), limit);
      return false;
    }
    // What has been given up may still be on its way, which MPI_Finalize would wait for, or crash at.
    if (s.worst != Wire::kWell && !others_finalize) {
      say_finalized(pmi_fd);
      return false;
    }
    if (has_any_ended()) return false;  // after its part in the meeting: MPI_Finalize would send to it
  }
  // Where the time-out was too short for others this rank may have met them all, and would wait for them again. But
  // where others call MPI_Finalize they wait there for this one.
  return !leave_open || others_finalize;
}

}  // namespace

void finalize(double timeout_s, double after_failure_s, bool leave_open, int pmi_fd) {
  State& s = state();
  if (!s.ours || !is_initialized()) return;
  if (!meet_at_end(timeout_s, after_failure_s, leave_open, pmi_fd)) {
    break_lines();  // others must not count on this rank until its process has ended
    return;
  }
  const std::lock_guard no_new_wires(s.wires_mutex);
  const auto lock = turn();
  for (const State::WireComm& wire : s.wires) {
    try {
      read_what_is_left(wire.comm);
    } catch (const std::exception& error) {  // the others count on this rank's part in MPI_Finalize
      std::fprintf(stderr, "accdp: while leaving MPI: %s\n", error.what());
    }
  }
  expose_refusals();
  ACCDP_MPI(MPI_Finalize());
  s.world = MPI_COMM_NULL;
}

}  // namespace accdp::mpi
