#pragma once
#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/birthplace.hpp"
#include "coll/asked.hpp"
#include "coll/call.hpp"
#include "coll/cost.hpp"
#include "coll/learned.hpp"
#include "coll/meeting.hpp"
#include "coll/notices.hpp"
#include "coll/roll_call.hpp"
#include "coll/topology.hpp"
#include "mpi/wire.hpp"
#include "node/slot_writer.hpp"
#include "node/status.hpp"
#include "node/waiter.hpp"

namespace accdp {

struct Peer {
  std::string host;
  int pid;
  std::uint64_t start_time;  ///< ticks since boot, so that a reused pid is not mistaken for the peer
  int node;
  /// Of its machine's cores, those that its node's thread has for itself; nodes may be containers of one machine.
  double cores = std::numeric_limits<double>::infinity();
  double paid = std::numeric_limits<double>::infinity();  ///< of their time, what quotas leave the ranks of its node
  /// Codecs that do not work in it, with the reason.
  std::map<std::string, std::string> lacks = {};
};

/// What the operations of one group share: the node's board, the wire to other nodes, who the peers
/// are, and whether the group has failed.
class Fabric {
 public:
  /// identity: what its ranks alone know, where another group may have the same name and members.
  Fabric(std::string name, int rank, std::vector<Peer> peers, int segment_fd, double timeout_s,
         std::shared_ptr<Wire> wire, const std::string& identity = "");
  ~Fabric();

  const std::string& name() const { return name_; }
  const Topology& topology() const { return topology_; }
  const Peer& peer(int rank) const { return peers_[rank]; }
  std::string here() const;              ///< "rank 3 of 8, group default": errors say it first
  std::string describe(int rank) const;  ///< "rank 3 (pid 4242, host n1)"
  double cores_per_node() const;         ///< the least of all ranks'
  std::uint32_t lacking_codecs() const { return lacking_codecs_; }  ///< of any rank; bits of CodecIds
  Board& board() const { return *board_; }
  std::shared_ptr<Board> shared_board() { return board_; }
  const Shape& shape() const { return shape_; }
  Wire* wire() { return wire_.get(); }
  /// Whether this process was forked from the one that formed the group: then it is no rank of it.
  bool is_inherited() const { return birthplace_.is_elsewhere(); }
  void check_process() const;  ///< throws where it is
  /// Whether there is a wire that takes device memory: as was asked for, else as the MPI library says.
  bool wire_takes_device_memory() const;
  Patience& patience(Channel channel) { return patience_[channel]; }
  /// Whether ranks outnumber the cores that this node has: of its machine's, if other nodes are there, too.
  bool is_crowded() const { return is_crowded_; }

  std::atomic<double> timeout_s;  ///< of operations that give none; any thread sets it
  // As set when the group was formed: ranks must not differ in them later.
  const std::size_t flat_bytes, eager_bytes;
  const Asked asked;

  Machine machine;  ///< by which algorithms are chosen: equal on all ranks

  Learned learned;
  Patience wire_patience;               ///< of collectives that wait for other nodes
  Way way;                              ///< of the last collective
  std::atomic<bool> has_told = false;   ///< this rank has been told that the group failed, by throw_if_failed()
  std::atomic<std::uint64_t> call = 0;  ///< number of this rank's collective that is under way, or was last
  int calls_ahead = 0;                  ///< the last so many went ahead between nodes
  RollCall& roll_call() { return roll_call_; }
  StatusLine& status() { return status_; }

  /// The first failure counts: tells it to every rank that can be reached. Later operations throw it.
  /// `disputed`: number of the collective that ranks disagree on, else 0.
  void fail(FailureKind kind, const std::string& text, std::uint64_t disputed = 0) noexcept;
  /// Of a request of a group that has failed, or will have once who drops it has caught why: abandons it when other
  /// nodes have been told, which may wait. Of a receive that has not begun at once.
  void give_up(Wire::Request& request) noexcept;
  /// Of an error of this rank's in an operation: tells every rank of it. Returns what its caller gets, which names this
  /// rank and the operation, too.
  std::exception_ptr fail_by(const std::exception_ptr& error, const std::string& what);
  /// By which ranks of other nodes hear of failures where MPI may not be asked to tell them. Before the first call.
  void set_notices(std::shared_ptr<Notices> notices);
  void expect_silence_of(int rank);  ///< it did not come in time; it may be dead
  /// Also takes notice of failures on other nodes, as does the next; not more often than every kNoticesLate.
  bool has_failed();
  void throw_if_failed();
  /// While there is one, this thread moves messages: what it is told of a failure is their error, whoever hears it.
  class ForMessages {
   public:
    ForMessages() noexcept { ++depth; }
    ~ForMessages() { --depth; }
    ForMessages(const ForMessages&) = delete;
    static bool is_here() noexcept { return depth > 0; }

   private:
    static inline thread_local int depth = 0;
  };
  void look_for_notices();  ///< takes up, as the two above, what was left there; costs a question to a store
  /// For what MPI fetched out of the memory of a rank of another node: throws if the group had failed there before.
  void throw_if_withdrawn();
  /// Of a group that has failed, before memory that MPI may still fetch for these ranks of other nodes gets another
  /// use.
  void withdraw(const std::set<int>& receivers) noexcept;
  /// Before a collective: throws if the group has failed. A rank that is later than others may have waited for it looks
  /// thoroughly whether they have given up: what they sent while they waited would be enough for some collectives.
  void enter(double timeout_s);
  void hear_out();  ///< that look
  void leave() noexcept;
  bool has_ended(int rank) const;  ///< its process; of other nodes' as far as the wire knows
  bool has_gone(int rank) const;   ///< has ended, or left the group
  bool has_left(int rank) const;   ///< in order, as far as is known
  std::string how_it_went(int rank) const;
  /// "; rank 2 is stopped": what a rank of this node that is waited for does instead, if it shows that.
  std::string whereabouts(int rank) const;
  static constexpr int kMostSoughtOut = 3;  ///< of ranks for one text
  /// Of the node's ranks, one that has died and not left in order; -1: none.
  int first_lost() const;
  /// Throws if the group has failed, or there is one, which then fails it. During what: for the text.
  void throw_if_lost(const std::string& what);
  /// Whether this rank can read the memory of that one, another of its node.
  bool can_read(int rank) const { return topology_.is_near(rank) && why_not_read_[topology_.local_of(rank)].empty(); }
  /// Why this rank cannot read the memory of some rank of its node; "" where it can read all.
  std::string why_no_single_copy() const;

  std::span<const void*> sources() { return sources_; }
  /// Of collectives, into this rank's slots: for one rank of the node to read, or (-1) for all others. What only this
  /// rank reads says nothing about them.
  SlotWriter& writer(int local_reader) {
    const bool is_other = local_reader >= 0 && local_reader != topology_.local_rank();
    const bool is_only_other = is_other && topology_.local_size() == 2;
    return writers_[local_reader < 0 || is_only_other ? topology_.local_size() : local_reader];
  }
  Bytes scratch(std::size_t bytes);
  /// Where signatures of other nodes come in, each with what it carries, and this node's goes out: the first place.
  static constexpr std::size_t kMeetingPlace = 64 + kMostCarriedBytes;
  Bytes meeting_place(int number);
  void release_scratch() noexcept;

 private:
  Birthplace birthplace_;
  std::string name_;
  std::vector<Peer> peers_;
  std::uint32_t lacking_codecs_ = 0;
  Topology topology_;
  std::shared_ptr<Board> board_;
  Shape shape_;
  std::shared_ptr<Wire> wire_;
  std::vector<std::atomic<bool>> said_farewell_;  // ranks of other nodes
  std::vector<std::atomic<bool>> silent_;         // ranks of other nodes that may be dead: nothing is sent to them
  Patience patience_[kChannels];
  bool is_crowded_ = false;
  void probe_neighbours();
  void take_farewells();
  void take_notice();
  void abandon_given_up() noexcept;
  /// false: MPI is of no more use, which it has said.
  bool tell(int rank, Wire::Tag tag, const std::string& text) noexcept;
  void tell_other_nodes(Wire::Tag tag, const std::string& text) noexcept;
  bool may_have_ended(int rank) const;
  void let_leave() noexcept;
  void take_up(const void* notice, std::size_t bytes);

  Clock::time_point entered_ = Clock::now();  // the last collective
  std::atomic<Clock::rep> next_look_ = 0;     // for notices of other nodes
  std::mutex failure_mutex_;
  std::mutex given_up_mutex_;
  std::vector<Wire::Request> given_up_;
  std::vector<bool> told_of_failure_;  // by rank
  bool left_notice_ = false;           // of it
  bool said_goodbye_ = false;          // that this rank leaves
  LimitedNotices notices_;
  RollCall roll_call_;
  std::vector<SlotWriter> writers_;   // one per rank of the node, and one for all together
  std::vector<const void*> sources_;  // one per rank of the node, as is the next
  std::vector<std::string> why_not_read_;
  std::vector<std::unique_ptr<std::byte[]>> scratch_;
  std::unique_ptr<std::byte[]> meeting_places_;
  std::vector<std::unique_ptr<std::string>> told_;  // failure notices still on their way
  StatusLine status_;
};

/// Watches one wait: failure, deadline, dead peers, Ctrl-C.
class Lookout : public Watch {
 public:
  Lookout(Fabric& fabric, const Deadline& deadline, WaitKind kind = kForCollective)
      : fabric_(fabric), deadline_(deadline), kind_(kind) {}
  bool has_failed() override { return fabric_.has_failed(); }
  void look_around(bool had_failed) override;

 protected:
  virtual bool waits_for(int rank) const = 0;  ///< group rank
  virtual std::string what() const = 0;        ///< "allreduce #17"
  /// What others are shown of the wait; nothing where its count is 0.
  virtual void describe_to(GroupStatus::Wait& wait) const;
  ~Lookout() {
    if (is_shown_) fabric_.status().end_wait(kind_);
  }

  Fabric& fabric_;
  Deadline deadline_;

 private:
  void show(Clock::time_point now);

  WaitKind kind_;
  Clock::time_point next_census_{}, next_question_{}, began_{}, next_show_{};
  int suspect_ = -1;
  bool is_shown_ = false;
};

}  // namespace accdp
