#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <thread>

#include "base/thread_mark.hpp"
#include "coll/fabric.hpp"
#include "coll/match_queue.hpp"
#include "node/ring.hpp"

namespace accdp {

/// One send or receive. Its buffer belongs to the caller and stays valid until it is done.
struct Message {
  Message(bool sends, int other, std::int64_t with_tag, std::byte* buffer, std::size_t count, double timeout_s)
      : is_send(sends), peer(other), tag(with_tag), data(buffer), bytes(count), deadline(timeout_s, started) {}

  bool is_send;
  int peer;  ///< a receive from anybody has -1 until it is matched, then the sender
  std::int64_t tag;
  std::byte* data;
  std::size_t bytes;
  Clock::time_point started = Clock::now();
  Deadline deadline;

  std::size_t moved = 0;      ///< payload bytes that have gone or come so far
  std::uint64_t id = 0;       ///< of a long message, unique per sender
  std::uint64_t address = 0;  ///< in the sender's memory
  bool is_whole = false;      ///< between nodes: not cut into pieces
  bool matched = false;       ///< from then on the peer counts on it
  std::atomic<bool> done{false};
  std::exception_ptr error;       ///< written before `done`
  bool is_alone = false;          ///< the error is of this receive only: the group has not failed by it
  std::function<void()> on_done;  ///< called once, without locks, by the thread that saw it finish; waits for nothing
  std::list<std::shared_ptr<Message>>::iterator place;  ///< among the office's open messages
};
using MessageHandle = std::shared_ptr<Message>;

/// Send and receive between any two ranks of a group, with tags, any-source and any number on their way.
///
/// Short messages travel at once and wait at the receiver if nobody asked for them yet, and somewhat longer ones to
/// other nodes go ahead (kAhead), as long as the receiver holds no more than kAllowanceBytes of one rank's messages
/// that it has not asked for. All others ask first (kAsk). Where the receiver can read the sender's memory it may copy
/// them out of there, and says so (kTaken); else it grants them a place, and they come in pieces (kGrant, kData). Ranks
/// of one node use the rings of the shared segment; other nodes the wire, with the same records. Whoever waits drives
/// all messages of the group; a background thread does where nobody waits, or looks, for a while.
class PostOffice {
 public:
  explicit PostOffice(Fabric& fabric);
  ~PostOffice();

  /// caller_waits: wait() follows at once, so the background thread need not know.
  MessageHandle send(ConstBytes data, int to, std::int64_t tag, double timeout_s, bool caller_waits = false);
  MessageHandle receive(Bytes data, int from, std::int64_t tag, double timeout_s, bool caller_waits = false);
  /// Short messages between ranks of a node, without a Message: true if it is done. Else nothing has happened.
  bool send_at_once(ConstBytes data, int to, std::int64_t tag);
  bool receive_at_once(Bytes data, int from, std::int64_t tag);
  /// Returns when it is done; throws its error. timeout_s < 0: only the message's own deadline counts.
  void wait(const MessageHandle& message, double timeout_s = -1);
  /// Moves what can be moved at once; whether it is done now. Throws no message's error.
  bool test(const MessageHandle& message);
  /// Until all are done: true. Throws no message's error. limit_s >= 0: at most so long, and nothing else changes; else
  /// each has `timeout_s` from now on as its deadline.
  bool wait_all(std::span<const MessageHandle> messages, double timeout_s, double limit_s = -1);
  /// Before the group is left: waits for everything that a peer counts on. A receive that nobody has answered is given
  /// up. Throws the first error, also of an earlier send if this rank has not been told that the group failed, or a
  /// UsageError that names such receives.
  void settle(double timeout_s);
  void hear(const Message& message);  ///< a caller is told its error
  static std::string describe(const Message& message);
  std::string says_late(const Message& message, double seconds) const;  ///< that it was not done in that time
  /// Whether the buffer of a message may lie on a device: the wire alone touches it, and takes that. Only of long
  /// messages between nodes; short ones are copied here. peer = -1: a receive from any rank, which may be a near one.
  bool takes_device_memory(std::size_t bytes, int peer) const {
    return peer >= 0 && peer < fabric_.topology().size() && !is_near(peer) && bytes > eager_bytes(peer) &&
           fabric_.wire_takes_device_memory();
  }
  /// Messages up to this travel with their heads.
  std::size_t eager_bytes(int peer) const;
  /// What the background thread does from now on before it drives: MPI wants the device of messages to be current.
  void prepare_attendant(std::function<void()> prepare);
  void on_done(const MessageHandle& message, std::function<void()> call);  ///< at once if it is done already
  /// Whether this thread is in the middle of moving them, which a signal handler may have interrupted.
  bool is_driven_here() const { return driver_.is_this_thread(); }
  int rank() const { return fabric_.topology().rank(); }
  /// Throws where this thread could not wait for a message: to be asked before it is posted.
  void check_not_driven_here() const;
  /// From now on it may take as long as that, if nothing has said yet how long.
  void limit(const MessageHandle& message, double timeout_s);
  bool is_attendant() const { return attendant_id_ == std::this_thread::get_id(); }
  /// After the group was left or has failed: ends the background thread, so that no memory of messages is let go on it
  /// from then on, and gives up what it would have. Without the host language's lock, which what it lets go may want.
  void retire();

 private:
  /// What a rank may hold of each other one because it was sent before anybody asked.
  static constexpr std::size_t kAllowanceBytes = 1 << 20;
  /// What counts of it: empty messages take memory, too, but the group's own, with tags below 0, wait for none.
  static std::size_t held_bytes(std::size_t message_bytes, std::int64_t tag) {
    return tag < 0 ? 0 : sizeof(MessageHead) + message_bytes;
  }

  struct Unexpected {
    int from;
    MessageHead head;
    std::vector<std::byte> payload;
  };
  struct Parcel {  // on the wire
    Wire::Request request;
    std::vector<std::byte> mail;
    MessageHandle message;  // of which it is a piece, or that travels in the mail, if any
  };
  /// Starts every mail between nodes.
  struct LetterHead {
    std::uint64_t matched;      ///< of the bytes that were sent ahead to this letter's sender
    std::uint64_t unread_from;  ///< of the long messages among them, number of the first without a receive, or the next
    MessageHead message;
  };
  struct Route {
    std::deque<std::pair<MessageHead, MessageHandle>> outbox;  // heads in order; with the message whose payload follows
    std::deque<MessageHandle> streaming;                       // granted sends
    std::map<std::uint64_t, MessageHandle> asked, arriving;
    std::deque<MessageHandle> taking;  // receives that copy out of the sender's memory
    SlotWriter writer;                 // into the ring to that rank
    // Bytes since the group was formed. The peer holds what was sent ahead and has not found its receives; this rank
    // has heard of those that have, and tells of its own.
    std::uint64_t sent_ahead = 0, matched_there = 0, matched = 0, told_matched = 0;
    // Of another node: numbers of long messages that went ahead, as far as they may have found no receive there, and of
    // those that have found none here; what comes next from there has this number or a higher one.
    std::deque<std::uint64_t> ahead;
    std::set<std::uint64_t> unread;
    std::uint64_t next_ahead = 0;
  };
  class Watcher;
  friend class Watcher;
  class Rings;
  friend class Rings;

  /// Removes what came from where it came, its payload into a place.
  using Take = std::function<void(std::byte*)>;

  void post(const MessageHandle& message, bool caller_waits);
  void match(const MessageHandle& receive);
  void send_here(const MessageHandle& message);
  void send_ahead(const MessageHandle& message);
  void ask(const MessageHandle& message);
  std::unique_lock<std::mutex> enter();
  void step_aside(std::unique_lock<std::mutex>& lock);
  void relieve_attendant();
  bool progress();
  void begin(const Message& message);
  bool is_asked_for(int from, const MessageHead& head) const;
  bool progress_ring(int peer, bool takes_all = true);
  bool progress_wire();
  bool flush_ring(int peer);
  bool take_piece(int peer);
  bool two_cores_copy(const Message& message, int from);
  bool is_allowed(int peer, std::size_t held);
  bool may_go_ahead(const Message& message);
  std::uint64_t take_number(const Route& route);
  void skip_taken_tags(const Route& route);
  bool has_next_tag(std::uint64_t id) const;
  void count_matched(int from, const MessageHead& head);
  void make_place(const MessageHandle& receive, int from);
  void grant_place(const MessageHandle& receive, int from);
  void flush_wire(int peer);
  void piece_moved(const Parcel& parcel);
  void mail(int peer, const MessageHead& head, const std::byte* payload, const MessageHandle& message);
  void arrived(int from, const MessageHead& head, const Take& take);
  void answered(int from, const MessageHead& head);
  void continued(int from, const MessageHead& head, const Take& take);
  void begun(int from, const MessageHead& head, const Take& take);
  static void drop(std::size_t bytes, const Take& take);
  void accept(const MessageHandle& receive, int from, const MessageHead& head);
  void grant(const MessageHandle& receive, int from, const MessageHead& head);
  void check_size(const Message& receive, int from, const MessageHead& head);
  void finish(const MessageHandle& message, std::exception_ptr error = nullptr);
  void expire();
  std::exception_ptr give_up(std::exception_ptr error);
  void end_failed(std::unique_lock<std::mutex>& lock);
  template <class Move>
  void as_driver(std::unique_lock<std::mutex>& lock, Move move);
  bool move_all(bool has_failed);
  void nap(Watcher& watcher);
  void drive(std::unique_lock<std::mutex>& lock, std::shared_ptr<Watcher>& watcher,
             const std::function<bool()>& enough);
  void drive(std::unique_lock<std::mutex>& lock, Watcher& watcher, const std::function<bool()>& enough,
             Clock::time_point until = Clock::time_point::max());
  /// awaited: what the caller waits for; all open messages where it is empty.
  void drive_or_wait(std::unique_lock<std::mutex>& lock, std::span<const MessageHandle> awaited,
                     const std::function<bool()>& enough, Clock::time_point until = Clock::time_point::max());
  void show_driving(bool drives);
  void look(std::unique_lock<std::mutex>& lock, Watcher& watcher);
  void look_in_between(std::unique_lock<std::mutex>& lock, Watcher& watcher);
  void attend();  // the background thread
  bool came_over_wire(const std::function<bool()>& enough);
  void run_callbacks(std::unique_lock<std::mutex>& lock);
  bool is_short_and_near(std::size_t bytes, int peer) const;
  bool is_near(int peer) const { return fabric_.topology().is_near(peer); }

  Fabric& fabric_;
  std::mutex mutex_;
  std::condition_variable done_, attention_;
  std::vector<Route> routes_;
  MatchQueue<MessageHandle> receives_;  // posted, not matched
  MatchQueue<Unexpected> unexpected_;
  std::list<MessageHandle> open_;  // everything not done
  std::list<Parcel> parcels_;
  const Message* at_hand_ = nullptr;  // which is worked on, where that is known: if something fails, what it is
  std::vector<std::byte> letter_, left_letter_;  // the last that came, and that left: room for the next
  std::vector<std::function<void()>> callbacks_;
  std::exception_ptr lost_;  // of the first send that failed
  std::uint64_t next_id_ = 1;
  std::atomic<std::uint64_t> changes_{0};  // messages posted or finished: a reason for the driver to look again
  std::atomic<int> visitors_{0};  // threads that wait for the lock, which who drives would take again and again
  std::uint64_t visits_ = 0;      // posts, waits and looks of callers
  bool driving_ = false;
  ThreadMark driver_;                // who does
  std::shared_ptr<Watcher> looker_;  // of test()
  Clock::time_point next_look_{};    // of test()
  bool attended_ = false;            // it is the background thread that drives
  std::function<void()> prepare_attendant_;
  bool resting_ = false;    // the background thread sleeps until told
  Habit spin_;              // of receive_at_once()
  Habit sender_waits_;      // for who sends a long message to wait for it
  Patience wire_patience_;  // of who drives messages of other nodes
  std::atomic<bool> stop_{false};
  std::thread attendant_;
  std::atomic<std::thread::id> attendant_id_{};  // while it runs
  std::mutex retiring_;
};

}  // namespace accdp
