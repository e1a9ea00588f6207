#pragma once
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "coll/fabric.hpp"
#include "device/reduce.hpp"
#include "node/steps.hpp"

namespace accdp {

struct Outgoing {
  int to;
  ConstBytes data;
};
struct Incoming {
  int from;
  Bytes data;
};

/// One collective on its way: what an algorithm works with. Algorithms are written in steps of the
/// node (node/steps.hpp) and exchanges between nodes; the first step of each also carries the
/// signature, so that ranks that disagree all fail before a byte reaches a caller's buffer.
///
/// On one node, where little is handed over, a rank that needs nothing from the others goes ahead: it publishes,
/// compares its signature with those that are there, and is done. Whoever comes later compares with it, so of two
/// that disagree the later one always notices, and the one that went ahead hears of it in its next collective. Between
/// nodes likewise, where data go along with the signatures one way (docs/design/0003-every-call-is-checked.md).
class Context final : public Lookout {
 public:
  Context(Fabric& fabric, const Signature& signature, const Deadline& deadline, std::uint64_t& step);
  ~Context() { fabric_.release_scratch(); }

  const Topology& topology() const { return fabric_.topology(); }
  int local_rank() const { return topology().local_rank(); }
  int local_size() const { return topology().local_size(); }
  std::size_t slot_bytes() const { return fabric_.board().slot_bytes(); }
  /// For what is said to the node's ranks, and heard of them, when the group has ended.
  std::shared_ptr<Board> board() const { return fabric_.shared_board(); }
  std::uint64_t step() const { return steps_.number(); }  ///< equal on the node's ranks, after each operation
  std::size_t flat_bytes() const { return fabric_.flat_bytes; }
  const Asked& asked() const { return fabric_.asked; }
  const Shape& shape() const { return fabric_.shape(); }
  const Machine& machine() const { return fabric_.machine; }
  /// How this operation is done. The first call counts: algorithms use one another.
  void note(const Way& way) {
    if (!std::exchange(noted_, true)) fabric_.way = way;
  }
  void note_anew() { noted_ = false; }  ///< what was noted so far only prepared the operation
  const Way& way() const { return fabric_.way; }

  std::byte* open(std::size_t bytes) { return steps_.open(bytes); }
  std::byte* aside() { return steps_.aside(); }  ///< as open(), which gives a slot: a short one beside it
  void open_unwritten() { steps_.open_unwritten(); }
  /// Copies into the own slot what a local rank, or all others (-1), will read there.
  void write(std::byte* place, ConstBytes data, int local_reader = -1) {
    if (!data.empty()) writer(local_reader).write(place, data.data(), data.size());
  }
  SlotWriter& writer(int local_reader) { return fabric_.writer(local_reader); }
  void publish();  ///< the first one waits for all ranks of the node and compares signatures
  void await(int local_rank);
  void await_all() { steps_.await_all(); }
  const std::byte* slot(int local_rank) const { return steps_.slot(local_rank); }  ///< once it was awaited
  void meet();  ///< a step in which nothing is handed over
  /// meet(), and ranks that do not lead know, too, that signatures agree between nodes.
  void meet_everywhere();
  bool has_met() const { return arrived_; }

  /// Data that the leader of a node sends along with its signature, so that they need no round of their own. Where they
  /// go one way, who sends does not wait for the others; all must name the same nodes where they agree.
  struct Cargo {
    std::size_t bytes = 0;                   ///< of this node's, at most kMostCarriedBytes
    int from_node = -1, to_node = -1;        ///< -1: all
    std::function<void(std::byte*)> load{};  ///< on the leader, once the ranks of its node have come, and agree
    bool by_tree = false;                    ///< from one node: along a binomial tree; else straight to each
    bool at_hub = true;                      ///< where leaders meet there; else each tells each
    /// Of what goes from all to all, where leaders meet at the hub: its leader makes what all get of what is carried()
    /// there, over what it loaded, and returns its length.
    std::function<std::size_t(std::byte*)> answer{};
    /// Instead of load(), where each node gets something else: makes what that one gets, this one's part among them,
    /// and returns its length. Called node by node.
    std::function<std::size_t(int node, std::byte*)> load_part{};
    bool is_one_way() const { return from_node >= 0 || to_node >= 0; }
    bool goes(int from, int to) const { return (from_node < 0 || from == from_node) && (to_node < 0 || to == to_node); }
  };
  /// As publish(), of the first step of an operation that goes_with_signatures() (cost.hpp).
  void publish_with(const Cargo& cargo);
  /// Afterwards, on leaders: what came from a node, or was loaded here. Valid until the next collective.
  ConstBytes carried(int node);
  ConstBytes carried(int node, std::size_t bytes);  ///< fails unless it is so long
  /// Whether what came from the hub, and was loaded there, is its answer.
  bool is_answered() const { return is_answered_; }

  /// Whether a call in whose only step each rank hands over at most so many bytes may go ahead. It then uses short
  /// slots. Ranks that disagree on that disagree on their signatures, too.
  bool may_go_ahead(std::size_t bytes) const {
    return !arrived_ && topology().nodes() == 1 && local_size() > 1 && bytes <= fabric_.board().short_slot_bytes();
  }
  std::byte* open_short() { return steps_.open_short(); }
  void publish_ahead();  ///< of a rank that then awaits only those that it needs something from, if any
  const std::byte* short_slot(int local_rank) const { return steps_.short_slot(local_rank); }

  /// Of a bcast_compressed, before the first step: what all leaders shall know after it, of all ranks together.
  void tell(std::uint64_t notice) { signature_.notice |= notice; }
  std::uint64_t told() const { return told_; }  ///< of all on leaders, elsewhere of this rank's node
  /// Of all on any rank; nothing while the leader of its node is still meeting the others.
  std::optional<std::uint64_t> told_by_all() const;
  std::uint64_t await_told();  ///< the same; waits for that leader

  /// Begin and end of messages to and from ranks of other nodes.
  Wire::Request isend(const Outgoing& parcel, Wire::Form form = Wire::Form::kWhole) {
    return wire().isend(parcel.data, parcel.to, Wire::kCollective, form);
  }
  Wire::Request irecv(const Incoming& parcel, Wire::Form form = Wire::Form::kWhole) {
    return wire().irecv(parcel.data, parcel.from, Wire::kCollective, form);
  }
  Wire& wire() { return *fabric_.wire(); }
  bool has_wire() const { return fabric_.wire() != nullptr; }
  /// To other nodes, by this rank in all collectives so far.
  std::uint64_t sent_bytes() const { return fabric_.wire() ? fabric_.wire()->collective_bytes() : 0; }
  bool wire_takes_device_memory() const { return fabric_.wire_takes_device_memory(); }
  double cores_per_node() const { return fabric_.cores_per_node(); }
  Learned& learned() { return fabric_.learned; }
  const Signature& signature() const { return signature_; }
  bool test(Wire::Request& request) { return wire().test(request); }
  void wait(Wire::Request& request) {
    poll([&] { return wire().test(request) ? -1 : request.peer; });
  }
  template <class Rest>
  void wait_for_all(std::span<Wire::Request> requests, Rest rest) {
    const auto missing = [&] {
      wire().test_some(requests);
      while (!requests.empty() && !requests.front().pending) requests = requests.subspan(1);
      return requests.empty() ? -1 : requests.front().peer;
    };
    poll(missing, rest);
  }
  /// From now on who waits for other nodes sleeps between looks from the start, for so long each time: for waits that
  /// are long and many. Zero: as usual.
  void doze(std::chrono::nanoseconds each) { doze_ = each; }
  /// Until missing() says -1; before, it tells which rank of another node is waited for. MPI offers nothing to sleep
  /// on: so after spinning and yielding, as on a node, and at once for who dozes, naps.
  template <class Missing>
  void poll(Missing missing) {
    poll(missing, [] {});
  }
  /// Between naps: rest().
  template <class Missing, class Rest>
  void poll(Missing missing, Rest rest) {
    constexpr int kMessagesPerClock = 4;  // a look lets MPI work, which takes about a microsecond
    const auto ready = [&] { return (wire_peer_ = missing()) < 0; };
    Patience& patience = fabric_.wire_patience;
    if (ready()) return;
    if (doze_.count() == 0) {
      if (try_until(patience.spin, kMessagesPerClock, pause, ready)) return;
      if (try_until(patience.yield, 1, yield, ready)) return;
    }
    for (bool failed = false; !ready() && !((failed = has_failed()) && ready());) {
      rest();
      nap(failed);
    }
  }
  /// Before what cannot be taken back: throws where this rank comes so late that others have given up.
  void check_late() {
    if (deadline_.passed()) fabric_.hear_out();
  }
  void abandon(Wire::Request& request) noexcept { fabric_.give_up(request); }
  void forget(Wire::Request& request) noexcept { wire().forget(request); }
  /// Sends and receives all of it. Pieces keep their order per pair of ranks.
  void exchange(std::span<const Incoming> incoming, std::span<const Outgoing> outgoing);

  /// Memory until the end of the collective; after a failure it stays, because MPI may still write there.
  Bytes scratch(std::size_t bytes) { return fabric_.scratch(bytes); }
  /// The same for what an operation does many times: one place, which each call gives anew.
  Bytes letters(std::size_t bytes) {
    if (letters_.size() < bytes) letters_ = scratch(bytes);
    return letters_.first(bytes);
  }
  /// And for one segment of those that are under way at once: of a pipeline, until the next one begins.
  Bytes segment_room(std::size_t number, std::size_t bytes) {
    if (segment_rooms_.size() <= number) segment_rooms_.resize(number + 1);
    Bytes& room = segment_rooms_[number];
    if (room.size() < bytes) room = scratch(bytes);
    return room;
  }
  /// Room for a pointer per rank of the node, so that a short reduction allocates nothing.
  std::span<const void*> sources() { return fabric_.sources(); }

  const Peer& peer(int rank) const { return fabric_.peer(rank); }
  std::string describe(int rank) const { return fabric_.describe(rank); }
  [[noreturn]] void fail_mismatch(const std::string& text) { fail_mismatch(text, signature_.sequence); }
  std::string what() const override { return name_of(signature_); }
  static std::string name_of(const Signature& call);

 protected:
  bool waits_for(int rank) const override;

 private:
  void nap(bool failed);  // looks around, too
  void compare_on_node();
  void arrive(const Cargo& cargo);
  class Meeting;  // of leaders: meeting.cpp
  void meet_leaders(const Cargo& cargo);
  void compare_with(int rank);
  [[noreturn]] void fail_mismatch(const std::string& text, std::uint64_t disputed);
  std::string says(int rank, const Signature& what) const;

  Signature signature_;
  std::uint64_t digest_;
  Steps steps_;
  std::uint64_t told_ = 0;
  struct {
    int from = -1;
    ConstBytes data;
  } carried_[kMeetingFanOut];  // by meeting place
  Bytes letters_;
  std::vector<Bytes> segment_rooms_;
  bool arrived_ = false, noted_ = false, is_answered_ = false;
  int wire_peer_ = -1;
  std::chrono::nanoseconds doze_{0};
};

/// Messages to and from ranks of other nodes that are on their way while the caller does something else. To be awaited
/// before its end; after a failure it gives them up.
class Exchange {
 public:
  explicit Exchange(Context& context) : c_(context) {}
  Exchange(const Exchange&) = delete;
  ~Exchange();

  void receive(const Incoming& parcel);  ///< receives first: then what comes finds its place
  void send(const Outgoing& parcel);
  void receive_up_to(const Incoming& parcel) { requests_.push_back(c_.irecv(parcel, Wire::Form::kUpTo)); }
  void send_up_to(const Outgoing& parcel) { requests_.push_back(c_.isend(parcel, Wire::Form::kUpTo)); }
  std::size_t begun() const { return requests_.size(); }
  std::size_t received_bytes(std::size_t message) const { return requests_[message].bytes; }
  /// So many of those that were begun. rest(): as Context::poll().
  template <class Rest>
  void await_first(std::size_t messages, Rest rest) {
    if (messages <= done_) return;
    c_.wait_for_all(std::span(requests_).subspan(done_, messages - done_), rest);
    done_ = messages;
  }
  void await_first(std::size_t messages) {
    await_first(messages, [] {});
  }
  void await_all() { await_first(begun()); }
  bool has_come(std::size_t message) const { return !requests_[message].pending; }
  int peer(std::size_t message) const { return requests_[message].peer; }

 private:
  Context& c_;
  std::vector<Wire::Request> requests_;
  std::size_t done_ = 0;
};

}  // namespace accdp
