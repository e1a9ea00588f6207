#include "coll/fabric.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/keep.hpp"
#include "base/settings.hpp"
#include "codec/codec.hpp"
#include "coll/joining.hpp"
#include "coll/notices.hpp"
#include "node/peer_memory.hpp"

namespace accdp {
namespace {

std::vector<int> nodes_of(const std::vector<Peer>& peers) {
  std::vector<int> nodes;
  for (const Peer& peer : peers) nodes.push_back(peer.node);
  return nodes;
}

/// Equal on all ranks of a group; of another group it differs.
std::uint64_t identity_of(const std::string& name, const std::vector<Peer>& peers, const std::string& known) {
  Hash hash;
  const auto add = [&](const std::string& text) {
    hash.add(text.size());
    for (char c : text) hash.add(static_cast<unsigned char>(c));
  };
  add(name);
  add(known);
  for (const Peer& peer : peers) {
    add(peer.host);
    hash.add({static_cast<std::uint64_t>(peer.pid), peer.start_time});
  }
  return hash.value();
}

Wire::Health health_after(FailureKind kind, const Wire& wire) {
  switch (kind) {
    case FailureKind::kMismatch: return Wire::kWell;  // ranks that only disagree are alive
    case FailureKind::kLeft:
    case FailureKind::kDamaged:
    case FailureKind::kOther: return Wire::kGroupFailed;
    case FailureKind::kTimeout: return wire.late_ranks_live() ? Wire::kGroupFailed : Wire::kRanksMayBeDead;
    case FailureKind::kDied: break;
  }
  return Wire::kRanksMayBeDead;
}

/// What all ranks decide by: of slots, which are longer on nodes with very many ranks, the shortest.
Shape shape_of(const Topology& t, std::size_t flat_bytes, double cores_per_node) {
  const auto ranks_on = [&](int node) { return static_cast<int>(t.members(node).size()); };
  std::map<int, int> others;  // by their ranks: how many nodes
  for (int node = 1; node < t.nodes(); ++node) ++others[ranks_on(node)];
  std::vector<Shape::Nodes> alike{{1, ranks_on(0)}};
  for (auto [ranks, count] : others) alike.push_back({count, ranks});
  Shape shape(std::move(alike), 0, flat_bytes);
  shape.slot_bytes = Board::slot_bytes_for(shape.least_local, settings().chunk_bytes);
  shape.meets_at_hub = meets_at_hub(shape.nodes, cores_per_node);
  shape.is_crowded = shape.most_local > cores_per_node;
  return shape;
}

// Where ranks outnumber the cores, whom a rank yields to may keep the core for long: it then had better sleep. While it
// waits for ranks on other cores, one that it waits for may be handing its core on, which takes 1 to 2 us.
constexpr int kCrowded = 5;
constexpr double kHandingOnUs = 3;
constexpr std::chrono::milliseconds kNoticesLeave{250};
constexpr std::chrono::microseconds kBetweenLooks{50};
// A look at what other nodes say lets MPI work twice, which takes as long as a short message.
constexpr std::chrono::microseconds kNoticesLate{100};
constexpr std::chrono::milliseconds kNoticesTake{
    50};  // to be seen, once they have come: MPI moves them when looked for

std::chrono::nanoseconds microseconds(double us) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(us * 1e3));
}

Patience patience_of_settings() {
  return {Habit(microseconds(settings().spin_us)), Habit(microseconds(settings().yield_us))};
}

/// is_paid: idle cores are there for who looks on. By a quota the time is another rank's, so nobody offers any: he
/// sleeps.
Patience patience_in_a_crowd(bool is_paid) {
  return {Habit(std::chrono::nanoseconds::zero()), Habit(microseconds(is_paid ? settings().yield_us : 0) / kCrowded),
          Habit(microseconds(std::min(settings().spin_us, kHandingOnUs))), true};
}

}  // namespace

Fabric::Fabric(std::string name, int rank, std::vector<Peer> peers, int segment_fd, double timeout,
               std::shared_ptr<Wire> wire, const std::string& identity)
    : timeout_s(timeout),
      flat_bytes(settings().flat_bytes),
      eager_bytes(settings().eager_bytes),
      asked(asked_by_settings()),
      wire_patience(patience_of_settings()),
      name_(std::move(name)),
      peers_(std::move(peers)),
      topology_(rank, nodes_of(peers_)),
      board_(map_board(*this, segment_fd, wire.get())),
      shape_(shape_of(topology_, flat_bytes, cores_per_node())),
      wire_(std::move(wire)),
      said_farewell_(topology_.size()),
      silent_(topology_.size()),
      patience_{patience_of_settings(), patience_of_settings()},
      told_of_failure_(topology_.size()),
      roll_call_(topology_.nodes() > 1 ? wire_.get() : nullptr, topology_.size()),
      writers_(topology_.local_size() + 1),
      sources_(topology_.local_size()),
      why_not_read_(topology_.local_size()),
      status_(identity_of(name_, peers_, identity), name_, rank, topology_.size(), topology_.nodes()) {
  if (topology_.nodes() > 1 && !wire_) throw UsageError("wire=None: expected a wire, because the group spans nodes");
  learned.receivers_decode_on_device = shape_.node_ranks() == 1;  // until they say
  for (const Peer& peer : peers_)
    for (const auto& [codec, reason] : peer.lacks) lacking_codecs_ |= bit_of(codec_named(codec).id);
  try {
    await_mates(*this, timeout);
  } catch (...) {
    keep_for_ever(std::move(told_));  // it may still be on its way
    throw;
  }
  const Peer& mine = peers_[rank];
  is_crowded_ = std::min<double>(board_->usable_cores(), mine.cores) < topology_.local_size();
  const bool is_paid = topology_.local_size() <= mine.paid;
  if (is_crowded_) wire_patience = patience_[kCollective] = patience_[kPointToPoint] = patience_in_a_crowd(is_paid);
  probe_neighbours();
}

/// What one rank finds need not hold for another, nor has it to: the receiver of a message decides.
void Fabric::probe_neighbours() {
  for (int rank : topology_.neighbours()) {
    if (rank == topology_.rank()) continue;
    std::string& why_not = why_not_read_[topology_.local_of(rank)];
    int error = 0;
    if (settings().cma == "off")
      why_not = "ACCDP_CMA=off";
    else if ((error = board_->probe_memory_of(topology_.local_of(rank), peers_[rank].pid)))
      why_not = why_not_read(error);
    // One that has made this group and ended since sends nothing that could be read.
    if (settings().cma != "on" || why_not.empty() || error == ESRCH) continue;
    fail(FailureKind::kOther, "ACCDP_CMA=on: expected that " + describe(topology_.rank()) + " can read the memory of " +
                                  describe(rank) + ", got " + why_not);
    throw_if_failed();
  }
}

std::string Fabric::why_no_single_copy() const {
  for (const std::string& why_not : why_not_read_)
    if (!why_not.empty()) return why_not;
  return "";
}

bool Fabric::wire_takes_device_memory() const {
  return wire_ && (asked.mpi_takes_device_memory ? *asked.mpi_takes_device_memory : wire_->takes_device_memory());
}

std::string Fabric::describe(int rank) const {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(peers_[rank].pid) + ", host " + peers_[rank].host +
         ")";
}

double Fabric::cores_per_node() const {
  return std::min_element(peers_.begin(), peers_.end(), [](const Peer& a, const Peer& b) { return a.cores < b.cores; })
      ->cores;
}

void Fabric::set_notices(std::shared_ptr<Notices> notices) {
  if (wire_ && !wire_->late_ranks_live()) notices_.set(std::move(notices));
}

void Fabric::fail(FailureKind kind, const std::string& text, std::uint64_t disputed) noexcept {
  if (is_inherited()) return;
  // Of all other failures the text names the rank that caused them; of this one the rank that was waited for.
  const std::string notice =
      notice_of(kind, disputed, kind == FailureKind::kTimeout ? text + ", says " + describe(topology_.rank()) : text);
  bool is_first;  // who tells the others
  {
    std::lock_guard lock(failure_mutex_);
    is_first = !board_->has_failed();
    if (is_first) {
      board_->fail(kind, text, disputed);
      told_of_failure_.assign(told_of_failure_.size(), true);
      left_notice_ = true;
    }
    if (is_first && wire_ && wire_->health() < Wire::kRanksMayBeDead) {
      wire_->worsen(health_after(kind, *wire_));
      tell_other_nodes(Wire::kFailure, notice);
      let_leave();
    }
  }
  if (is_first) notices_.leave(notice);
  abandon_given_up();
}

std::exception_ptr Fabric::fail_by(const std::exception_ptr& error, const std::string& what) {
  const std::string who = describe(topology_.rank());
  try {
    std::rethrow_exception(error);
  } catch (const Interrupted&) {
    fail(FailureKind::kOther, who + " was interrupted during " + what);
    return error;
  } catch (const std::exception& e) {
    fail(kind_of(e), who + " failed in " + what + ": " + e.what());
    return named(error, here(), "in " + what);
  }
}

void Fabric::give_up(Wire::Request& request) noexcept {
  if (!request.pending) return;
  wire_->cancel(request);  // into memory that may go before the others are told
  {
    const std::lock_guard lock(given_up_mutex_);
    given_up_.push_back(std::exchange(request, {}));
  }
  if (board_->has_failed()) abandon_given_up();
}

/// MPI may send the rest of what this rank's caller gets back, and writes to.
void Fabric::abandon_given_up() noexcept {
  std::vector<Wire::Request> requests;
  {
    const std::lock_guard lock(given_up_mutex_);
    requests.swap(given_up_);
  }
  std::set<int> receivers;
  for (const Wire::Request& request : requests)
    if (!request.is_receive && request.peer != Wire::kEverybody) receivers.insert(request.peer);
  withdraw(receivers);
  for (Wire::Request& request : requests) wire_->abandon(request);
}

/// Nothing overtakes a notice: what comes to its receiver afterwards may be anything. Whoever failed first tells of it,
/// but perhaps later than this rank's caller has its memory back.
void Fabric::withdraw(const std::set<int>& receivers) noexcept {
  if (receivers.empty() || is_inherited()) return;
  const auto [kind, text] = board_->failure();
  const std::string notice = notice_of(kind, board_->failed_call(), text);
  bool leaves_notice;
  {
    std::lock_guard lock(failure_mutex_);
    for (int rank : receivers) {
      if (told_of_failure_[rank]) continue;
      told_of_failure_[rank] = true;
      if (wire_->health() < Wire::kRanksMayBeDead) tell(rank, Wire::kFailure, notice);
    }
    leaves_notice = !std::exchange(left_notice_, true);
  }
  if (leaves_notice) notices_.leave(notice);
}

/// The process may end right after a failure, and MPI moves nothing by itself.
void Fabric::let_leave() noexcept {
  if (wire_->moves_by_itself()) return;
  try {
    for (Looks looks(kNoticesLeave); looks.go_on(); std::this_thread::sleep_for(kBetweenLooks)) take_farewells();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "accdp: rank %d of group %s, while telling of a failure: %s\n", topology_.rank(),
                 name_.c_str(), error.what());
  }
}

void Fabric::tell_other_nodes(Wire::Tag tag, const std::string& text) noexcept {
  for (int rank = 0; rank < topology_.size(); ++rank)
    if (!topology_.is_near(rank) && !tell(rank, tag, text) && tag == Wire::kFarewell) return;  // one line is enough
}

bool Fabric::tell(int rank, Wire::Tag tag, const std::string& text) noexcept {
  if (silent_[rank] || may_have_ended(rank)) return true;
  try {
    const std::string& kept = *told_.emplace_back(std::make_unique<std::string>(text));
    Wire::Request request = wire_->isend(std::as_bytes(std::span(kept)), rank, tag);
    wire_->forget(request);
    return true;
  } catch (const PeerDied&) {
    return silent_[rank] = true;  // others may be reached
  } catch (const std::exception& error) {
    // It then hears of it only through its deadline; here there is nothing left to do.
    std::fprintf(stderr, "accdp: rank %d of group %s could not tell rank %d that it stops: %s\n", topology_.rank(),
                 name_.c_str(), rank, error.what());
    return false;
  }
}

/// Who has left the group may have ended, which MPI minds where nobody else does. It need not know of a failure since.
/// Where its end would be known it is told of this rank's farewell; else it keeps the wire's communicator.
bool Fabric::may_have_ended(int rank) const {
  return said_farewell_[rank] && !wire_->late_ranks_live() && (board_->has_failed() || !wire_->can_tell_end_of(rank));
}

void Fabric::expect_silence_of(int rank) {
  if (wire_ && !wire_->late_ranks_live()) silent_[rank] = true;
}

void Fabric::enter(double timeout_s) {
  throw_if_failed();
  if (!wire_) return;
  // No other rank can have begun to wait for this call before this rank began the last one.
  const auto now = Clock::now();
  const std::chrono::duration<double> since_the_last = now - std::exchange(entered_, now);
  if (since_the_last.count() >= timeout_s) hear_out();
}

void Fabric::hear_out() {
  look_for_notices();
  for (Looks looks(kNoticesTake); looks.go_on(); std::this_thread::yield()) {
    next_look_ = 0;  // which lets MPI move what comes
    throw_if_failed();
  }
}

bool Fabric::has_failed() {
  const Clock::rep now = wire_ ? Clock::now().time_since_epoch().count() : 0;
  if (wire_ && wire_->health() == Wire::kUnsafe && !board_->has_failed())
    fail(FailureKind::kOther, describe(topology_.rank()) + ": " + Wire::kUnsafeMeans);
  if (wire_ && now >= next_look_.load(std::memory_order_relaxed) && !board_->has_failed()) {
    next_look_.store(now + Clock::duration(kNoticesLate).count(), std::memory_order_relaxed);
    take_farewells();
    take_notice();
    try {
      roll_call_.look();
    } catch (const MismatchError& error) {
      fail(FailureKind::kMismatch, error.what());
    }
  }
  return board_->has_failed();
}

void Fabric::take_farewells() {
  int from;
  std::vector<std::byte> ignored;
  while (wire_->take(Wire::kFarewell, from, ignored)) said_farewell_[from] = true;
}

void Fabric::take_notice() {
  int from;
  std::vector<std::byte> notice;
  if (wire_->take(Wire::kFailure, from, notice)) take_up(notice.data(), notice.size());
}

void Fabric::throw_if_withdrawn() {
  if (!wire_) return;
  take_notice();  // which may be what lets MPI move it
  take_notice();
  throw_if_failed();
}

void Fabric::look_for_notices() {
  if (!notices_ || board_->has_failed()) return;
  const std::string notice = notices_.find();
  take_up(notice.data(), notice.size());
}

void Fabric::take_up(const void* notice, std::size_t bytes) {
  NoticeHead head;
  if (bytes < sizeof head) return;
  std::memcpy(&head, notice, sizeof head);
  board_->fail(head.kind, std::string(static_cast<const char*>(notice) + sizeof head, bytes - sizeof head),
               head.disputed);
}

std::string Fabric::here() const {
  return "rank " + std::to_string(topology_.rank()) + " of " + std::to_string(topology_.size()) + ", group " + name_;
}

void Fabric::check_process() const {
  if (is_inherited())
    throw UsageError(here() + ": expected a call from " + describe(topology_.rank()) + ", got one from pid " +
                     std::to_string(getpid()) + ", which was forked from it after the group was formed");
}

void Fabric::throw_if_failed() {
  check_process();
  try {
    if (!has_failed()) return;
  } catch (const MpiError& error) {
    throw MpiError(here() + ": " + error.what());  // before an operation, which would have named the rank
  }
  if (!ForMessages::is_here()) has_told = true;
  auto [kind, text] = board_->failure();
  status_.fail(text);
  if (const std::uint64_t disputed = board_->failed_call(), now = call; disputed && disputed < now)
    text += " (#" + std::to_string(disputed) + " is an earlier call; this is #" + std::to_string(now) + ")";
  if (wire_) wire_->worsen(health_after(kind, *wire_));
  throw_failure(kind, here() + ": " + text);
}

void Fabric::leave() noexcept {
  if (is_inherited()) return;
  status_.leave();
  board_->mine().left.store(1, std::memory_order_release);
  board_->ring_others(kCollective);
  board_->ring_others(kPointToPoint);
  std::lock_guard lock(failure_mutex_);
  if (!wire_ || wire_->health() >= Wire::kRanksMayBeDead || std::exchange(said_goodbye_, true)) return;
  try {
    for (int look = 0; look < 2; ++look) take_farewells();  // the first may be what lets MPI move them
  } catch (const std::exception& error) {
    std::fprintf(stderr, "accdp: rank %d of group %s, while leaving it: %s\n", topology_.rank(), name_.c_str(),
                 error.what());
    return;  // one line is enough
  }
  tell_other_nodes(Wire::kFarewell, "");
  // Of a group that others leave without a farewell the wire is kept: something may still come.
  wire_->retire(topology_.size() - topology_.local_size());
}

/// What MPI may still read or write of a group that has failed is nobody else's any more; nor are questions among ranks
/// of any group, whose answers nobody waited for.
Fabric::~Fabric() {
  roll_call_.keep_letters();
  if (!wire_ || !board_->has_failed()) return;
  keep_for_ever(std::move(scratch_));
  keep_for_ever(std::move(meeting_places_));
  keep_for_ever(std::move(told_));
}

Bytes Fabric::scratch(std::size_t bytes) {
  // Not set to zero: of the room for a message that was encoded little is used, and what is not touched is not there.
  scratch_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
  return {scratch_.back().get(), bytes};
}

Bytes Fabric::meeting_place(int number) {
  // As scratch(): what is never carried takes no memory.
  if (!meeting_places_) meeting_places_ = std::make_unique_for_overwrite<std::byte[]>(kMeetingFanOut * kMeetingPlace);
  return {meeting_places_.get() + number * kMeetingPlace, kMeetingPlace};
}

void Fabric::release_scratch() noexcept {
  if (!scratch_.empty() && !board_->has_failed()) scratch_.clear();
}

}  // namespace accdp
