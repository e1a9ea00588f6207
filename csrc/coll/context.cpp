#include "coll/context.hpp"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "base/error.hpp"

namespace accdp {
namespace {

// MPI counts are ints; both sides cut alike.
constexpr std::size_t kPieceBytes = std::size_t{256} << 20;
template <class Parcel, class Post>
void post_pieces(const Parcel& parcel, std::vector<Wire::Request>& requests, Post post) {
  for (std::size_t at = 0; at < parcel.data.size(); at += kPieceBytes) {
    Parcel piece = parcel;
    piece.data = parcel.data.subspan(at, std::min(kPieceBytes, parcel.data.size() - at));
    requests.push_back(post(piece));
  }
}

}  // namespace

Context::Context(Fabric& fabric, const Signature& signature, const Deadline& deadline, std::uint64_t& step)
    : Lookout(fabric, deadline),
      signature_(signature),
      digest_(signature.digest()),
      steps_(fabric.board(), step, fabric.patience(kCollective), *this) {
  if (topology().nodes() > 1 && topology().is_leader()) fabric.roll_call().begin(signature);
}

std::string Context::name_of(const Signature& call) {
  return std::string(accdp::name_of(static_cast<OpKind>(call.kind))) + " #" + std::to_string(call.sequence);
}

bool Context::waits_for(int rank) const {
  if (wire_peer_ == Wire::kEverybody) return rank != topology().rank() && !fabric_.has_left(rank);
  if (wire_peer_ >= 0) return rank == wire_peer_;
  return topology().is_near(rank) && steps_.waits_for(topology().local_of(rank));
}

void Context::publish() {
  if (arrived_) return steps_.publish();
  arrive({});
}

void Context::publish_with(const Cargo& cargo) { arrive(cargo); }

void Context::arrive(const Cargo& cargo) {
  steps_.sign(signature_, digest_);
  steps_.publish();
  arrived_ = true;
  steps_.await_all();
  compare_on_node();
  if (topology().nodes() == 1 || !topology().is_leader()) return;
  meet_leaders(cargo);
  fabric_.board().mine().told.store(told_, std::memory_order_relaxed);
  fabric_.board().mine().told_in.store(signature_.sequence, std::memory_order_release);
}

std::optional<std::uint64_t> Context::told_by_all() const {
  const RankLine& leader = fabric_.board().line(topology().local_of(topology().leader(topology().node())));
  if (leader.told_in.load(std::memory_order_acquire) != signature_.sequence) return std::nullopt;
  return leader.told.load(std::memory_order_relaxed);
}

std::uint64_t Context::await_told() {
  const int leader = topology().leader(topology().node());
  if (topology().nodes() == 1 || leader == topology().rank()) return told_;
  std::optional<std::uint64_t> told;
  poll([&] { return (told = told_by_all()) ? -1 : leader; });
  return *told;
}

void Context::publish_ahead() {
  steps_.sign(signature_, digest_);
  steps_.publish();
  for (int rank : topology().neighbours())
    if (steps_.has_published(topology().local_of(rank))) compare_with(rank);
}

void Context::await(int local_rank) {
  steps_.await(local_rank);
  if (!arrived_) compare_with(topology().neighbours()[local_rank]);
}

void Context::meet() {
  open_unwritten();
  publish();
  await_all();
}

void Context::meet_everywhere() {
  meet();
  if (topology().nodes() > 1) meet();
}

void Context::compare_on_node() {
  for (int rank : topology().neighbours()) compare_with(rank);
  if (static_cast<OpKind>(signature_.kind) != OpKind::kBcastCompressed) return;
  for (int local = 0; local < local_size(); ++local) told_ |= steps_.signature(local).notice;
}

std::string Context::says(int rank, const Signature& what) const {
  return fabric_.describe(rank) + " calls " + accdp::describe(what) + " as #" + std::to_string(what.sequence);
}

void Context::compare_with(int rank) {
  if (steps_.digest(topology().local_of(rank)) == digest_) return;
  const Signature& other = steps_.signature(topology().local_of(rank));
  if (!arrived_) steps_.await_all();
  // Which of two ranks is the odd one? The one whose node mates say something else.
  const int me = topology().rank();
  int with_me = 0, with_other = 0;
  for (int local = 0; local < local_size(); ++local) {
    const Signature& said = steps_.signature(local);
    with_me += said == signature_;
    with_other += said == other;
  }
  const bool i_am_odd = with_other > with_me || (with_other == with_me && me > rank);
  const std::string mine = says(me, signature_), its = says(rank, other);
  fail_mismatch(difference(signature_, other) + (i_am_odd ? mine + ", but " + its : its + ", but " + mine));
}

void Context::fail_mismatch(const std::string& text, std::uint64_t disputed) {
  fabric_.fail(FailureKind::kMismatch, text, disputed);
  fabric_.throw_if_failed();
  throw MismatchError(text);
}

void Context::nap(bool failed) {
  look_around(failed);
  // MPI offers nothing to sleep on, so a long wait polls at a rate that leaves the core to others.
  const timespec time{0, std::max<std::chrono::nanoseconds::rep>(doze_.count(), 20'000)};
  nanosleep(&time, nullptr);
}

void Context::exchange(std::span<const Incoming> incoming, std::span<const Outgoing> outgoing) {
  Exchange all(*this);
  for (const Incoming& parcel : incoming) all.receive(parcel);
  for (const Outgoing& parcel : outgoing) all.send(parcel);
  all.await_all();
}

Exchange::~Exchange() {
  for (std::size_t i = done_; i < requests_.size(); ++i) c_.abandon(requests_[i]);
}

void Exchange::receive(const Incoming& parcel) {
  post_pieces(parcel, requests_, [&](const Incoming& piece) { return c_.irecv(piece, Wire::Form::kPieces); });
}

void Exchange::send(const Outgoing& parcel) {
  post_pieces(parcel, requests_, [&](const Outgoing& piece) { return c_.isend(piece, Wire::Form::kPieces); });
}

}  // namespace accdp
