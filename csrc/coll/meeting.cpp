// What leaders tell each other at the start of an operation: their calls, so that all ranks fail if some disagree, and
// short data along with them (docs/design/0003-every-call-is-checked.md). Who meets whom:
// - everyone: round by round each tells others, farther away than before, what it and all that it heard of call. After
//   the last round all have heard of all, whatever their number: hearing of some twice does no harm.
// - at the hub, where nodes share the cores of one machine, so that each message takes time from all: all tell node 0,
//   which tells all. 2 (n - 1) messages one way after the other, instead of n (n - 1) at once. Not where each node gets
//   something else, or much: then everyone.
// - one way, where data go one way: who has something to tell tells it, who gets it compares, and nobody else waits.
//   All agree on which calls go ahead so, because they count them. Not where a rank may be dead without an end of the
//   job: MPI minds every message to it, and who goes ahead would send several.
// A letter has a head, which is all that is read of one that does not fit, and what it carries. There is room for one
// of whatever length: who sends it may call something else.
#include "coll/meeting.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "coll/context.hpp"
#include "coll/schedule.hpp"

namespace accdp {
namespace {

/// What is carried begins at a cache line.
struct alignas(kSignatureBytes) Head {
  Signature signature;
};
static_assert(sizeof(Head) == kSignatureBytes);
// Long against what a message takes, and short for who waits to hear that it does so in vain.
constexpr std::chrono::milliseconds kAsksAfter{50};
// Who has gone ahead answers when it next waits or calls something.
constexpr std::chrono::milliseconds kAnswersTake{1000};
constexpr std::uint8_t kSomeDisagree = 255;  // the kind of no operation
constexpr int kHub = 0;

using Nodes = std::vector<int>;

}  // namespace

/// One leader's part.
class Context::Meeting {
 public:
  Meeting(Context& context, const Cargo& cargo) : c_(context), cargo_(cargo), all_(context.signature_) {
    all_.notice = c_.told_;
    if (cargo.bytes) cargo.load(letter(0).data() + sizeof(Head));
    c_.carried_[0] = {me_, letter(0).subspan(sizeof(Head), cargo.bytes)};
    if (cargo.load_part && cargo.goes(me_, -1)) load_parts();
  }

  void run() {
    Fabric& fabric = c_.fabric_;
    const bool goes_ahead =
        cargo_.is_one_way() && c_.wire().late_ranks_live() && fabric.calls_ahead < RollCall::kMostCallsAhead;
    fabric.calls_ahead = goes_ahead ? fabric.calls_ahead + 1 : 0;
    const bool is_from_elsewhere = cargo_.from_node > kHub, is_for_others = cargo_.to_node > kHub;
    const bool is_at_hub = c_.shape().meets_at_hub && (cargo_.at_hub || cargo_.is_one_way());
    if (goes_ahead)
      go_one_way();
    else if (is_at_hub && !is_from_elsewhere && !is_for_others)
      meet_at_hub();
    else
      meet_everyone();
    if (cargo_.by_tree && !goes_ahead) go_down();
    c_.told_ = all_.notice;
    if (all_.kind == kSomeDisagree) call_the_roll(c_.topology().rank(), c_.signature_);
  }

 private:
  int leader(int node) const { return c_.topology().leader(node); }
  /// What comes to a meeting place, or goes from there.
  Bytes letter(int place) const { return c_.fabric_.meeting_place(place); }
  bool carries_to(int node) const { return !cargo_.by_tree && cargo_.goes(me_, node); }

  /// One letter for each node in the first meeting place, each with room for a head.
  void load_parts() {
    std::size_t at = 0;
    for (int node = 0; node < nodes_; ++node) {
      const std::size_t bytes = cargo_.load_part(node, letter(0).data() + at + sizeof(Head));
      parts_.push_back(letter(0).subspan(at, sizeof(Head) + bytes));
      at += (parts_.back().size() + sizeof(Head) - 1) / sizeof(Head) * sizeof(Head);
    }
    c_.carried_[0] = {me_, parts_[me_].subspan(sizeof(Head))};
  }

  /// What goes to a node, with or without what was loaded, or came to a meeting place.
  Bytes letter_to(int node, bool carries, int place) const {
    if (!parts_.empty()) return parts_[node];
    return letter(place).first(sizeof(Head) + (carries ? c_.carried_[place].data.size() : 0));
  }

  void meet_everyone() {
    asks_ = false;  // of ranks that call different operations at least one hears of another kind
    is_heard_out_ = nodes_ > kMeetingFanOut;
    for_meeting_rounds(nodes_, [&](int distance, int messages) {
      Nodes from, to;
      for (int i = 1; i <= messages; ++i) {
        from.push_back((me_ + nodes_ - i * distance) % nodes_);
        to.push_back((me_ + i * distance) % nodes_);
      }
      talk(from, to, [&](int node) { return carries_to(node); });
    });
  }

  void meet_at_hub() {
    if (me_ != kHub) {
      talk({}, {kHub}, [&](int node) { return carries_to(node); });
      talk({kHub}, {});
    } else {
      talk(others(), {});
      if (cargo_.answer) {
        const std::size_t bytes = cargo_.answer(letter(0).data() + sizeof(Head));
        c_.carried_[0].data = letter(0).subspan(sizeof(Head), bytes);
      }
      talk({}, others(), [&](int node) { return cargo_.answer || carries_to(node); });
    }
    c_.is_answered_ = cargo_.answer != nullptr;
  }

  void go_one_way() {
    if (cargo_.from_node >= 0)
      go_down();
    else if (cargo_.to_node == me_)
      talk(others(), {});
    else
      talk({}, {cargo_.to_node});
  }

  /// From one node to all: straight, or each passes on what it got.
  void go_down() {
    const int root = cargo_.from_node, place = (me_ - root + nodes_) % nodes_;
    const auto node_at = [&](int other) { return (root + other) % nodes_; };
    if (!cargo_.by_tree && place > 0) return talk({root}, {});
    if (!cargo_.by_tree) return talk({}, others());
    for (Hop& hop : bcast_schedule(BcastAlgorithm::kBinomial, nodes_, place, 1)) {
      if (place > 0) {
        talk({node_at(hop.from)}, {});
        c_.carried_[1].from = root;  // first
      }
      for (int& to : hop.to) to = node_at(to);
      talk({}, hop.to, [](int) { return true; }, place > 0);
    }
  }

  Nodes others() const {
    Nodes all(nodes_ - 1);
    std::iota(all.begin(), all.begin() + me_, 0);
    std::iota(all.begin() + me_, all.end(), me_ + 1);
    return all;
  }

  void talk(const Nodes& from, const Nodes& to) {
    talk(from, to, [](int) { return true; });
  }

  /// Hears of some nodes, and tells others, at once. carries(node): whether what was loaded, or came to another meeting
  /// place, goes along.
  template <class Carries>
  void talk(const Nodes& from, const Nodes& to, Carries carries, int place = 0) {
    Exchange talks(c_);
    const int expected = static_cast<int>(from.size());
    for (int i = 0; i < expected; ++i) talks.receive_up_to({leader(from[i]), letter(i + 1)});
    for (int node : to) {
      const Bytes sent = letter_to(node, carries(node), place);
      // Of a letter to all there is one head: MPI may read it later.
      if (node == to.front() || !parts_.empty()) std::memcpy(sent.data(), &all_, sizeof all_);
      talks.send_up_to({leader(node), sent});
    }
    const auto compare = [&] {
      for (int i = 0; i < expected && !is_heard_out_; ++i)
        if (talks.has_come(i) && said(i) != all_) call_the_roll(talks.peer(i), said(i));
    };
    const auto look_around = [&] {
      compare();
      if (asks_) ask_whom_it_waits_for();
    };
    talks.await_first(talks.begun(), look_around);
    compare();
    bool agree = true;
    for (int i = 0; i < expected; ++i) {
      agree &= said(i) == all_;
      all_.notice |= said(i).notice;
      const std::size_t carried = std::max(talks.received_bytes(i), sizeof(Head)) - sizeof(Head);
      c_.carried_[i + 1] = {from[i], letter(i + 1).subspan(sizeof(Head), carried)};
    }
    if (!agree) all_.kind = kSomeDisagree;
  }

  Signature said(int message) const {
    Signature signature;
    std::memcpy(&signature, letter(message + 1).data(), sizeof signature);
    return signature;
  }

  /// Who waits long may wait for one that is late, or that calls something else.
  void ask_whom_it_waits_for() {
    if (Clock::now() < began_ + kAsksAfter) return;
    RollCall& roll = c_.fabric_.roll_call();
    roll.ask(c_.wire_peer_, c_.signature_.sequence);
    const std::optional<Signature> call = roll.answer(c_.wire_peer_, c_.signature_.sequence);
    if (call && *call != c_.signature_) call_the_roll(c_.wire_peer_, *call);
  }

  [[noreturn]] void call_the_roll(int rank, const Signature& said);

  Context& c_;
  const Cargo& cargo_;
  const int nodes_ = c_.topology().nodes(), me_ = c_.topology().node();
  const Clock::time_point began_ = Clock::now();
  std::vector<Bytes> parts_;                 // by node, where each gets something else
  Signature all_;                            // of this rank and all that it heard of
  bool asks_ = c_.wire().late_ranks_live();  // whom it waits for: not one that may be dead
  bool is_heard_out_ = false;                // although some disagree, so that all hear of it
};

void Context::meet_leaders(const Cargo& cargo) { Meeting(*this, cargo).run(); }

ConstBytes Context::carried(int node) {
  int place = 0;
  while (carried_[place].from != node) ++place;
  return carried_[place].data;
}

ConstBytes Context::carried(int node, std::size_t bytes) {
  const ConstBytes data = carried(node);
  if (data.size() != bytes)
    fail_mismatch(describe(topology().leader(node)) + " sent " + std::to_string(data.size()) +
                  " bytes with its signature, expected " + std::to_string(bytes));
  return data;
}

/// A rank has said that it calls something else; `said` may be an earlier call, or a later one. All leaders are asked
/// what they call, so that the odd one can be named; the sides of those that do not answer in time are not known.
void Context::Meeting::call_the_roll(int rank, const Signature& said) {
  RollCall& roll = c_.fabric_.roll_call();
  const Topology& t = c_.topology();
  const std::uint64_t sequence = std::min(said.sequence, c_.signature_.sequence);
  for (int node : others()) roll.ask(leader(node), sequence);
  std::vector<std::optional<Signature>> calls(nodes_);
  calls[me_] = roll.called(sequence);
  c_.poll([&, until = Clock::now() + kAnswersTake] {
    for (int node = 0; node < nodes_; ++node)
      if (!calls[node] && !(calls[node] = roll.answer(leader(node), sequence)) && Clock::now() < until)
        return leader(node);
    return -1;
  });
  if (std::optional<Signature>& call = calls[t.node_of(rank)]; !call || *call == calls[me_]) call = said;
  // Within a node all agree by now. The side with fewer ranks is the odd one; with as many, the one without rank 0.
  const auto side_of = [&](int node) {
    std::size_t ranks = 0;
    for (int other = 0; calls[node] && other < nodes_; ++other)
      if (calls[other] == calls[node]) ranks += t.members(other).size();
    return ranks;
  };
  int usual = 0;
  for (int node = 1; node < nodes_; ++node)
    if (side_of(node) > side_of(usual)) usual = node;
  for (int node = 0; node < nodes_; ++node)
    if (calls[node] && calls[node] != calls[usual])
      c_.fail_mismatch(difference(*calls[node], *calls[usual]) + c_.says(leader(node), *calls[node]) + ", but " +
                           c_.says(leader(usual), *calls[usual]),
                       sequence);
  c_.fail_mismatch("ranks disagree on " + c_.what() + ", and who calls something else has not said so in time",
                   sequence);
}

}  // namespace accdp
