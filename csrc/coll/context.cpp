#include "coll/context.hpp"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "coll/meeting.hpp"

namespace accdp {
namespace {

// MPI counts are ints; both sides cut alike.
constexpr std::size_t kPieceBytes = std::size_t{256} << 20;
// What a signature carries begins at a cache line.
constexpr std::size_t kBeforeSignature = 64 - kSignatureBytes;
// Long against what a message takes, and short for who waits to hear that it does so in vain.
constexpr std::chrono::milliseconds kAsksAfter{50};
// Who has gone ahead answers when it next waits or calls something.
constexpr std::chrono::milliseconds kAnswersTake{1000};

template <class Parcel, class Post>
void post_pieces(const Parcel& parcel, std::vector<Wire::Request>& requests, Post post) {
  for (std::size_t at = 0; at < parcel.data.size(); at += kPieceBytes) {
    Parcel piece = parcel;
    piece.data = parcel.data.subspan(at, std::min(kPieceBytes, parcel.data.size() - at));
    requests.push_back(post(piece));
  }
}

/// Where all but the layout is equal the descriptions are too, so say what differs.
std::string difference(const Signature& a, Signature b) {
  b.layout = a.layout;
  if (a != b) return "ranks disagree: ";
  if (a.kind == static_cast<std::uint8_t>(OpKind::kBcastCompressed))
    return "ranks disagree on the tensors, codec, chunk size, error bound or reference: ";
  if (a.kind == static_cast<std::uint8_t>(OpKind::kAllreduceCompressed))
    return "ranks disagree on the tensors, codec, chunk size or error bound: ";
  const auto kind = static_cast<OpKind>(a.kind);
  if (kind == OpKind::kAllreduce || kind == OpKind::kReduce) return "ranks disagree on deterministic: ";
  if (kind == OpKind::kReduceScatter) return "ranks disagree on the sizes of their blocks, or on deterministic: ";
  return "ranks disagree on the sizes of their blocks: ";
}

}  // namespace

Context::Context(Fabric& fabric, const Signature& signature, const Deadline& deadline, std::uint64_t& step)
    : Lookout(fabric, deadline),
      signature_(signature),
      digest_(signature.digest()),
      steps_(fabric.board(), step, fabric.patience(kCollective), *this) {
  if (topology().nodes() > 1 && topology().is_leader()) fabric.roll_call().begin(signature);
}

std::string Context::what() const {
  return std::string(name_of(static_cast<OpKind>(signature_.kind))) + " #" + std::to_string(signature_.sequence);
}

bool Context::waits_for(int rank) const {
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
  if (topology().nodes() > 1 && topology().is_leader()) compare_between_nodes(cargo);
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

void Context::compare_on_node() {
  for (int rank : topology().neighbours()) compare_with(rank);
  if (static_cast<OpKind>(signature_.kind) != OpKind::kBcastCompressed) return;
  for (int local = 0; local < local_size(); ++local) told_ |= steps_.signature(local).notice;
}

/// Round by round each leader tells others, farther away than before, what it and all that it heard of call. After the
/// last round everyone has heard of all, whatever their number: hearing of some twice does no harm. There is always
/// room for what a signature may carry: who sends it may call something else.
///
/// Where data go one way the signatures go along with them and nowhere else: who has something to tell goes ahead, who
/// gets it compares. All ranks agree on which calls do so, because they count them. Not where a rank may be dead
/// without an end of the job: MPI minds every message to it, and who goes ahead would send several.
void Context::compare_between_nodes(const Cargo& cargo) {
  static_assert(sizeof(Signature) == kSignatureBytes);
  constexpr std::uint8_t kSomeDisagree = 255;  // the kind of no operation
  const int nodes = topology().nodes(), me = topology().node();
  const bool goes_ahead =
      cargo.is_one_way() && wire().late_ranks_live() && fabric_.calls_ahead < RollCall::kMostCallsAhead;
  fabric_.calls_ahead = goes_ahead ? fabric_.calls_ahead + 1 : 0;
  const auto speaks = [&](int from, int to) { return !goes_ahead || cargo.goes(from, to); };
  const auto began = Clock::now();
  Signature all = signature_;
  all.notice = told_;
  const Bytes own = fabric_.meeting_place(0).subspan(kBeforeSignature);
  if (cargo.bytes) cargo.load(own.data() + kSignatureBytes);
  carried_bytes_[0] = cargo.bytes;
  for_meeting_rounds(nodes, [&](int distance, int messages) {
    Exchange round(*this);
    int places[kMeetingFanOut], received = 0;
    for (int i = 1; i <= messages; ++i) {
      const int from = (me + nodes - i * distance) % nodes;
      if (!speaks(from, me)) continue;
      round.receive_up_to({topology().leader(from), fabric_.meeting_place(i).subspan(kBeforeSignature)});
      places[received++] = i;
    }
    std::memcpy(own.data(), &all, sizeof all);
    for (int i = 1; i <= messages; ++i) {
      const int to = (me + i * distance) % nodes;
      if (!speaks(me, to)) continue;
      round.send({topology().leader(to), own.first(kSignatureBytes + (cargo.goes(me, to) ? cargo.bytes : 0))});
    }
    const auto said = [&](int message) {
      Signature other;
      std::memcpy(&other, fabric_.meeting_place(places[message]).data() + kBeforeSignature, sizeof other);
      return other;
    };
    // Of several rounds each is finished, so that all hear of it.
    const bool is_only_round = nodes <= kMeetingFanOut;
    const auto compare = [&] {
      for (int message = 0; is_only_round && message < received; ++message)
        if (round.has_come(message) && said(message) != all) call_the_roll(round.peer(message), said(message));
    };
    round.await_all([&] {
      compare();
      if (goes_ahead) ask_whom_it_waits_for(began);
    });
    compare();
    bool agree = true;
    for (int message = 0; message < received; ++message) {
      const Signature other = said(message);
      agree &= other == all;
      all.notice |= other.notice;
      carried_bytes_[places[message]] = round.received_bytes(message) - kSignatureBytes;
    }
    if (!agree) all.kind = kSomeDisagree;
  });
  told_ = all.notice;
  if (all.kind == kSomeDisagree) call_the_roll(topology().rank(), signature_);
}

ConstBytes Context::carried(int node, std::size_t bytes) {
  const int number = meeting_number(node);
  if (carried_bytes_[number] != bytes)
    fail_mismatch(describe(topology().leader(node)) + " sent " + std::to_string(carried_bytes_[number]) +
                  " bytes with its signature, expected " + std::to_string(bytes));
  return fabric_.meeting_place(number).subspan(kBeforeSignature + kSignatureBytes, bytes);
}

/// Who waits long may wait for one that is late, or that calls something else.
void Context::ask_whom_it_waits_for(Clock::time_point since) {
  if (Clock::now() < since + kAsksAfter) return;
  RollCall& roll = fabric_.roll_call();
  roll.ask(wire_peer_, signature_.sequence);
  const std::optional<Signature> call = roll.answer(wire_peer_, signature_.sequence);
  if (call && *call != signature_) call_the_roll(wire_peer_, *call);
}

/// A rank has said that it calls something else; `said` may be an earlier call, or a later one. All leaders are asked
/// what they call, so that the odd one can be named; the sides of those that do not answer in time are not known.
void Context::call_the_roll(int rank, const Signature& said) {
  RollCall& roll = fabric_.roll_call();
  const Topology& t = topology();
  const std::uint64_t sequence = std::min(said.sequence, signature_.sequence);
  for (int node = 0; node < t.nodes(); ++node)
    if (node != t.node()) roll.ask(t.leader(node), sequence);
  std::vector<std::optional<Signature>> calls(t.nodes());
  calls[t.node()] = roll.called(sequence);
  poll([&, until = Clock::now() + kAnswersTake] {
    for (int node = 0; node < t.nodes(); ++node)
      if (!calls[node] && !(calls[node] = roll.answer(t.leader(node), sequence)) && Clock::now() < until)
        return t.leader(node);
    return -1;
  });
  if (std::optional<Signature>& call = calls[t.node_of(rank)]; !call || *call == calls[t.node()]) call = said;
  // Within a node all agree by now. The side with fewer ranks is the odd one; with as many, the one without rank 0.
  const auto side_of = [&](int node) {
    std::size_t ranks = 0;
    for (int other = 0; calls[node] && other < t.nodes(); ++other)
      if (calls[other] == calls[node]) ranks += t.members(other).size();
    return ranks;
  };
  int usual = 0;
  for (int node = 1; node < t.nodes(); ++node)
    if (side_of(node) > side_of(usual)) usual = node;
  for (int node = 0; node < t.nodes(); ++node)
    if (calls[node] && calls[node] != calls[usual])
      fail_mismatch(difference(*calls[node], *calls[usual]) + says(t.leader(node), *calls[node]) + ", but " +
                        says(t.leader(usual), *calls[usual]),
                    sequence);
  fail_mismatch("ranks disagree on " + what() + ", and who calls something else has not said so in time", sequence);
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

void Context::nap() {
  look_around();
  // MPI offers nothing to sleep on, so a long wait polls at a rate that leaves the core to others.
  const timespec time{0, 20'000};
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
  post_pieces(parcel, requests_, [&](const Incoming& piece) { return c_.irecv(piece); });
}

void Exchange::send(const Outgoing& parcel) {
  post_pieces(parcel, requests_, [&](const Outgoing& piece) { return c_.isend(piece); });
}

void Exchange::await_first(std::size_t messages) {
  if (messages <= done_) return;
  c_.wait_for_all(std::span(requests_).subspan(done_, messages - done_), [] {});
  done_ = messages;
}

}  // namespace accdp
